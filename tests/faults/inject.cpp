// Library for LD_PRELOAD that lets the N-th passage through a gate of the system fail: allocations, opening,
// reading, writing and flushing files, starting threads.
//
// Nothing in the product knows of it. Disarmed, each function only calls the one of the system. Allocations
// by `operator new` count where the caller is in a watched module, files where they are in the watched
// folder.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

enum Gate : unsigned { object = 1, block = 2, opens = 4, reads = 8, writes = 16, flushes = 32, threads = 64 };

// More than the buffers of NumPy's iterators, which reports one that fails without the interpreter's lock,
// and crashes.
constexpr size_t least_block_bytes = (128 << 10) + 1;
constexpr int most_modules = 8;

std::atomic<unsigned> armed{0};
std::atomic<long> failing{0}, passed{0};
std::atomic<bool> persistent{false};
struct {
    uintptr_t begin, end;
    bool is_interpreter;
} modules[most_modules];
int module_count = 0;
char folder[4096] = "";

/// Whether this passage through a gate fails.
bool fails(Gate gate) {
    if (!(armed.load(std::memory_order_relaxed) & gate)) return false;
    const long number = passed.fetch_add(1) + 1, first = failing.load();
    return persistent ? number >= first : number == first;
}

bool is_armed(Gate gate) { return armed.load(std::memory_order_relaxed) & gate; }

bool is_in_module(const void* caller, bool is_interpreter) {
    const auto address = reinterpret_cast<uintptr_t>(caller);
    for (int i = 0; i < module_count; ++i)
        if (modules[i].is_interpreter == is_interpreter && modules[i].begin <= address &&
            address < modules[i].end)
            return true;
    return false;
}
bool is_watched(const void* caller) { return is_in_module(caller, false); }

bool is_in_folder(const char* path) {
    return *folder && std::strncmp(path, folder, std::strlen(folder)) == 0;
}

bool is_watched_file(int file) {
    char link[64], path[4096];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return false;
    path[length] = 0;
    return is_in_folder(path);
}

bool refuses_file(Gate gate, int file, int error) {
    if (!is_armed(gate)) return false;
    const int before = errno;
    const bool watched = is_watched_file(file);
    errno = before;
    if (!watched || !fails(gate)) return false;
    errno = error;
    return true;
}

bool refuses_path(Gate gate, const char* path, int error) {
    if (!is_armed(gate) || !path || !is_in_folder(path) || !fails(gate)) return false;
    errno = error;
    return true;
}

bool refuses_block(size_t nbytes, const void* caller) {
    return nbytes >= least_block_bytes && is_armed(block) && !is_in_module(caller, true) && fails(block);
}

template <typename Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void* allocate(size_t nbytes, const void* caller) {
    if (is_armed(object) && is_watched(caller) && fails(object)) throw std::bad_alloc();
    if (refuses_block(nbytes, caller)) throw std::bad_alloc();
    void* const memory = __libc_malloc(nbytes ? nbytes : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}

void* map(void* address, size_t nbytes, int protection, int flags, int file, off_t offset,
          const void* caller) {
    const bool anonymous = flags & MAP_ANONYMOUS;
    if (anonymous ? refuses_block(nbytes, caller) : refuses_file(opens, file, ENOMEM)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return reinterpret_cast<void*>(syscall(SYS_mmap, address, nbytes, protection, flags, file, offset));
}

}  // namespace

// --- for the tests, by ctypes

extern "C" {

void inject_add_module(uintptr_t begin, uintptr_t end, int is_interpreter) {
    if (module_count < most_modules) modules[module_count++] = {begin, end, is_interpreter != 0};
}
void inject_watch_folder(const char* path) { std::snprintf(folder, sizeof folder, "%s", path); }
/// Let passage `number` through one of `gates` fail, and with `persists` all later ones.
void inject_arm(unsigned gates, long number, int persists) {
    passed = 0;
    failing = number;
    persistent = persists != 0;
    armed = gates;
}
/// Passages since the gates were armed, which they are no more.
long inject_disarm() {
    armed = 0;
    return passed;
}

// --- memory

void* malloc(size_t nbytes) {
    if (refuses_block(nbytes, __builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_malloc(nbytes);
}
void* calloc(size_t count, size_t nbytes) {
    if (count && nbytes >= least_block_bytes / count &&
        refuses_block(count * nbytes, __builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_calloc(count, nbytes);
}
void* realloc(void* memory, size_t nbytes) {
    if (refuses_block(nbytes, __builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_realloc(memory, nbytes);
}
void* aligned_alloc(size_t alignment, size_t nbytes) {
    if (refuses_block(nbytes, __builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_memalign(alignment, nbytes);
}
int posix_memalign(void** memory, size_t alignment, size_t nbytes) {
    if (refuses_block(nbytes, __builtin_return_address(0))) return ENOMEM;
    *memory = __libc_memalign(alignment, nbytes);
    return *memory ? 0 : ENOMEM;
}
void* mmap(void* address, size_t nbytes, int protection, int flags, int file, off_t offset) {
    return map(address, nbytes, protection, flags, file, offset, __builtin_return_address(0));
}
void* mmap64(void* address, size_t nbytes, int protection, int flags, int file, off_t offset) {
    return map(address, nbytes, protection, flags, file, offset, __builtin_return_address(0));
}

// --- files

int open(const char* path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    if (refuses_path(opens, path, flags & O_CREAT ? ENOSPC : EIO)) return -1;
    return int(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int open64(const char* path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    return open(path, flags, mode);
}
int mkostemp(char* pattern, int flags) {
    if (refuses_path(opens, pattern, ENOSPC)) return -1;
    static const auto system = next<int (*)(char*, int)>("mkostemp");
    return system(pattern, flags);
}
ssize_t read(int file, void* data, size_t nbytes) {
    if (refuses_file(reads, file, EIO)) return -1;
    return syscall(SYS_read, file, data, nbytes);
}
ssize_t pread(int file, void* data, size_t nbytes, off_t offset) {
    if (refuses_file(reads, file, EIO)) return -1;
    return syscall(SYS_pread64, file, data, nbytes, offset);
}
ssize_t pread64(int file, void* data, size_t nbytes, off_t offset) {
    return pread(file, data, nbytes, offset);
}
ssize_t preadv(int file, const iovec* parts, int count, off_t offset) {
    if (refuses_file(reads, file, EIO)) return -1;
    return syscall(SYS_preadv, file, parts, count, offset, 0);
}
ssize_t write(int file, const void* data, size_t nbytes) {
    if (refuses_file(writes, file, ENOSPC)) return -1;
    return syscall(SYS_write, file, data, nbytes);
}
ssize_t pwrite(int file, const void* data, size_t nbytes, off_t offset) {
    if (refuses_file(writes, file, ENOSPC)) return -1;
    return syscall(SYS_pwrite64, file, data, nbytes, offset);
}
ssize_t pwrite64(int file, const void* data, size_t nbytes, off_t offset) {
    return pwrite(file, data, nbytes, offset);
}
ssize_t pwritev(int file, const iovec* parts, int count, off_t offset) {
    if (refuses_file(writes, file, ENOSPC)) return -1;
    return syscall(SYS_pwritev, file, parts, count, offset, 0);
}
int fsync(int file) {
    if (refuses_file(flushes, file, EIO)) return -1;
    return int(syscall(SYS_fsync, file));
}
int fdatasync(int file) {
    if (refuses_file(flushes, file, EIO)) return -1;
    return int(syscall(SYS_fdatasync, file));
}
int ftruncate(int file, off_t nbytes) {
    if (refuses_file(flushes, file, ENOSPC)) return -1;
    return int(syscall(SYS_ftruncate, file, nbytes));
}
int ftruncate64(int file, off_t nbytes) { return ftruncate(file, nbytes); }
int rename(const char* from, const char* to) {
    if (refuses_path(flushes, to, EIO)) return -1;
    return int(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

// --- threads

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
    if (fails(threads)) return EAGAIN;
    static const auto system =
        next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
    return system(thread, attributes, start, argument);
}

}  // extern "C"

void* operator new(size_t nbytes) { return allocate(nbytes, __builtin_return_address(0)); }
void* operator new[](size_t nbytes) { return allocate(nbytes, __builtin_return_address(0)); }
void* operator new(size_t nbytes, const std::nothrow_t&) noexcept {
    if (is_armed(object) && is_watched(__builtin_return_address(0)) && fails(object)) return nullptr;
    return refuses_block(nbytes, __builtin_return_address(0)) ? nullptr : __libc_malloc(nbytes ? nbytes : 1);
}
