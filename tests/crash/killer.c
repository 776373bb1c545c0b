// Ends the process at the n-th system call that changes something under one folder.
//
// Loaded with LD_PRELOAD. `killer_arm(folder, n, torn)` begins to count; with `torn` the n-th call, if it
// writes, writes half of its bytes. With n = 0 it only counts: `killer_count()`. The process ends with 77, or
// with 78 after half a write. Nothing is synced: what a kill leaves does not depend on it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static long limit, torn;
static long counted;
static int halved;

void killer_arm(const char* path, long n, long half) {
    snprintf(folder, sizeof folder, "%s", path);
    folder_length = strlen(folder);
    limit = n;
    torn = half;
    __atomic_store_n(&counted, 0, __ATOMIC_SEQ_CST);
}

long killer_count(void) { return __atomic_load_n(&counted, __ATOMIC_SEQ_CST); }

static int within(const char* path) { return folder_length && strncmp(path, folder, folder_length) == 0; }

static int fd_within(int fd) {
    char link[64], path[PATH_MAX];
    if (!folder_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return within(path);
}

static int at_within(int dir, const char* path) {
    return path[0] == '/' || dir == AT_FDCWD ? within(path) : fd_within(dir);
}

// Counts one call that took effect; the process ends here when it was the one.
static void happened(void) {
    const int saved = errno;
    const long now = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (limit && now >= limit) _exit(halved ? 78 : 77);
    errno = saved;
}

static size_t cut(int ours, size_t size) {
    if (!ours || !torn || !limit || killer_count() + 1 < limit) return size;
    halved = 1;
    return size / 2;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define COUNTED(ours, call)             \
    const int mine = (ours);            \
    const __auto_type found = (call);   \
    if (mine && found >= 0) happened(); \
    return found;

#define OPENING(name)                                                                         \
    int name(const char* path, int flags, ...) {                                              \
        va_list more;                                                                         \
        va_start(more, flags);                                                                \
        const mode_t mode = va_arg(more, mode_t);                                             \
        va_end(more);                                                                         \
        COUNTED((flags & (O_CREAT | O_TRUNC)) && within(path), REAL(name)(path, flags, mode)) \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                                                                   \
    int name(int dir, const char* path, int flags, ...) {                                                  \
        va_list more;                                                                                      \
        va_start(more, flags);                                                                             \
        const mode_t mode = va_arg(more, mode_t);                                                          \
        va_end(more);                                                                                      \
        COUNTED((flags & (O_CREAT | O_TRUNC)) && at_within(dir, path), REAL(name)(dir, path, flags, mode)) \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

ssize_t write(int fd, const void* data, size_t size) {
    const int ours = fd_within(fd);
    COUNTED(ours, REAL(write)(fd, data, cut(ours, size)))
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
    const int ours = fd_within(fd);
    COUNTED(ours, REAL(pwrite)(fd, data, cut(ours, size), at))
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
    const int ours = fd_within(fd);
    COUNTED(ours, REAL(pwrite64)(fd, data, cut(ours, size), at))
}
ssize_t writev(int fd, const struct iovec* parts, int count) {
    const int ours = fd_within(fd);
    COUNTED(ours, REAL(writev)(fd, parts, count > 1 ? (int)cut(ours, (size_t)count) : count))
}
ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t at) {
    const int ours = fd_within(fd);
    COUNTED(ours, REAL(pwritev)(fd, parts, count > 1 ? (int)cut(ours, (size_t)count) : count, at))
}
ssize_t pwritev64(int fd, const struct iovec* parts, int count, off64_t at) {
    const int ours = fd_within(fd);
    COUNTED(ours, REAL(pwritev64)(fd, parts, count > 1 ? (int)cut(ours, (size_t)count) : count, at))
}
int fsync(int fd) { return fd_within(fd) ? 0 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fd_within(fd) ? 0 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t size) { COUNTED(fd_within(fd), REAL(ftruncate)(fd, size)) }
int ftruncate64(int fd, off64_t size) { COUNTED(fd_within(fd), REAL(ftruncate64)(fd, size)) }
int truncate(const char* path, off_t size) { COUNTED(within(path), REAL(truncate)(path, size)) }
int fallocate(int fd, int mode, off_t at,
              off_t size){COUNTED(fd_within(fd), REAL(fallocate)(fd, mode, at, size))}
#define ALLOCATING(name, offset)                    \
    int name(int fd, offset at, offset size) {      \
        const int code = REAL(name)(fd, at, size);  \
        if (code == 0 && fd_within(fd)) happened(); \
        return code;                                \
    }
ALLOCATING(posix_fallocate, off_t)
    ALLOCATING(posix_fallocate64, off64_t) int rename(const char* from, const char* to) {
    COUNTED(within(to), REAL(rename)(from, to))
}
int renameat(int from_dir, const char* from, int to_dir, const char* to) {
    COUNTED(at_within(to_dir, to), REAL(renameat)(from_dir, from, to_dir, to))
}
int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
    COUNTED(at_within(to_dir, to), REAL(renameat2)(from_dir, from, to_dir, to, flags))
}
int link(const char* from, const char* to) { COUNTED(within(to), REAL(link)(from, to)) }
int symlink(const char* from, const char* to) { COUNTED(within(to), REAL(symlink)(from, to)) }
int unlink(const char* path) { COUNTED(within(path), REAL(unlink)(path)) }
int unlinkat(int dir, const char* path, int flags) {
    COUNTED(at_within(dir, path), REAL(unlinkat)(dir, path, flags))
}
int rmdir(const char* path) { COUNTED(within(path), REAL(rmdir)(path)) }
int mkdir(const char* path, mode_t mode) { COUNTED(within(path), REAL(mkdir)(path, mode)) }
int mkdirat(int dir, const char* path, mode_t mode) {
    COUNTED(at_within(dir, path), REAL(mkdirat)(dir, path, mode))
}

static int submits_a_write(long count, struct iocb** requests) {
    for (long i = 0; i < count; ++i) {
        const int code = requests[i]->aio_lio_opcode;
        if ((code == IOCB_CMD_PWRITE || code == IOCB_CMD_PWRITEV) && fd_within((int)requests[i]->aio_fildes))
            return 1;
    }
    return 0;
}

long syscall(long number, ...) {
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; ++i) a[i] = va_arg(more, long);
    va_end(more);
    const int ours = number == SYS_io_submit && submits_a_write(a[1], (struct iocb**)a[2]);
    COUNTED(ours, REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]))
}
