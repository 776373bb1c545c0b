#include "cpu/cached_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>
#include <vector>

#include "cpu/strided_copy.h"

namespace accelera::io {
namespace {

/// Shorter lines in memory are gathered through the staging buffer instead of an iovec each.
constexpr int64_t shortest_vector = 1 << 10;

/// One huge page where the system has them: a request into scattered small pages is much slower.
class Staging {
  public:
    Staging() {
        void* pages =
            mmap(nullptr, 2 * staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(pages);
        const uintptr_t start = (address + staging_bytes - 1) / staging_bytes * staging_bytes;
        pages_ = pages;
        bytes_ = reinterpret_cast<char*>(start);
        madvise(bytes_, staging_bytes, MADV_HUGEPAGE);
    }
    ~Staging() { munmap(pages_, 2 * staging_bytes); }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    char* bytes() { return bytes_; }

  private:
    void* pages_;
    char* bytes_;
};

Outcome failed(int error, int64_t offset, int64_t wanted, int64_t got) {
    return {false, error, offset, wanted, got};
}

/// Repeat `request(done)` until `wanted` bytes have moved; zero moved means the file ended.
template <class Request>
Outcome complete(int64_t offset, int64_t wanted, Request&& request) {
    int64_t done = 0;
    while (done < wanted) {
        const ssize_t moved = request(done);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) return failed(errno, offset, wanted, done);
        if (moved == 0) return failed(0, offset, wanted, done);
        done += moved;
    }
    return {};
}

/// The lines of a block without gaps in the file, in file order, `bytes` bytes each.
class Lines {
  public:
    Lines(const Geometry& geometry, const Block& block) : geometry_(geometry), block_(block) {
        const auto& axes = geometry.axes();
        last_ = axes.size();
        bytes_ = geometry.itemsize();
        if (last_ > block.level && axes[last_ - 1].memory_stride == bytes_) {
            --last_;
            bytes_ *= count(last_);
        }
    }
    int64_t bytes() const { return bytes_; }

    /// The vectors that remain after the first `skipped` bytes, as many as one request takes.
    std::vector<iovec> after(int64_t skipped) const {
        std::vector<iovec> vectors;
        const int64_t total = geometry_.payload(block_) / bytes_;
        const int64_t first = skipped / bytes_;
        for (int64_t i = first; i < std::min<int64_t>(total, first + IOV_MAX); ++i) {
            const int64_t cut = i == first ? skipped % bytes_ : 0;
            vectors.push_back({line(i) + cut, static_cast<size_t>(bytes_ - cut)});
        }
        return vectors;
    }

  private:
    int64_t count(size_t axis) const {
        return axis == block_.level ? block_.lead : geometry_.axes()[axis].count;
    }
    char* line(int64_t index) const {
        char* place = block_.memory;
        for (size_t axis = last_; axis-- > block_.level;) {
            place += index % count(axis) * geometry_.axes()[axis].memory_stride;
            index /= count(axis);
        }
        return place;
    }

    const Geometry& geometry_;
    const Block& block_;
    size_t last_;
    int64_t bytes_;
};

/// Whether a block moves with one vectored request and no staging buffer.
bool vectored(const Geometry& geometry, const Block& block) {
    return geometry.dense(block) && Lines(geometry, block).bytes() >= shortest_vector;
}

std::vector<CopyAxis> copy_axes(const Geometry& geometry, const Block& block, bool into_memory) {
    std::vector<CopyAxis> axes;
    for (size_t i = block.level; i < geometry.axes().size(); ++i) {
        const Axis& axis = geometry.axes()[i];
        const int64_t count = i == block.level ? block.lead : axis.count;
        axes.push_back(into_memory ? CopyAxis{count, axis.memory_stride, axis.file_stride}
                                   : CopyAxis{count, axis.file_stride, axis.memory_stride});
    }
    return axes;
}

void gather(const Geometry& geometry, const Block& block, char* staged) {
    strided_copy(staged, block.memory, copy_axes(geometry, block, false), geometry.itemsize());
}

/// Ask for the number of cached pages (Linux 6.5); -1 when the kernel does not say.
int64_t cached_pages(int file, int64_t offset, int64_t bytes) {
    struct {
        uint64_t offset, length;
    } range{static_cast<uint64_t>(offset), static_cast<uint64_t>(bytes)};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } found{};
    constexpr long cachestat = 451;
    return syscall(cachestat, file, &range, &found, 0) == 0 ? static_cast<int64_t>(found.cached) : -1;
}

}  // namespace

char* staging() {
    thread_local Staging buffer;
    return buffer.bytes();
}

Outcome read_run(int file, char* memory, int64_t bytes, int64_t offset) {
    return complete(offset, bytes, [&](int64_t done) {
        return pread(file, memory + done, static_cast<size_t>(bytes - done), offset + done);
    });
}

Outcome write_run(int file, const char* memory, int64_t bytes, int64_t offset) {
    return complete(offset, bytes, [&](int64_t done) {
        return pwrite(file, memory + done, static_cast<size_t>(bytes - done), offset + done);
    });
}

void scatter(const Geometry& geometry, const Block& block, const char* staged) {
    strided_copy(block.memory, staged, copy_axes(geometry, block, true), geometry.itemsize());
}

bool cached(int file, int64_t offset, int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t pages = (offset + bytes - 1) / page - offset / page + 1;
    const int64_t found = cached_pages(file, offset, bytes);
    if (found >= 0) return found >= pages;
    char byte;
    iovec probe{&byte, 1};
    return preadv2(file, &probe, 1, offset, RWF_NOWAIT) == 1;
}

Outcome read_block(int file, const Geometry& geometry, const Block& block) {
    const int64_t span = geometry.span(block);
    if (geometry.contiguous(block)) return read_run(file, block.memory, span, block.offset);
    if (vectored(geometry, block)) {
        const Lines lines(geometry, block);
        return complete(block.offset, span, [&](int64_t done) {
            const auto vectors = lines.after(done);
            return preadv(file, vectors.data(), static_cast<int>(vectors.size()), block.offset + done);
        });
    }
    const Outcome outcome = read_run(file, staging(), span, block.offset);
    if (outcome.done) scatter(geometry, block, staging());
    return outcome;
}

Outcome write_block(int file, const Geometry& geometry, const Block& block) {
    const int64_t span = geometry.span(block);
    if (geometry.contiguous(block)) return write_run(file, block.memory, span, block.offset);
    if (vectored(geometry, block)) {
        const Lines lines(geometry, block);
        return complete(block.offset, span, [&](int64_t done) {
            const auto vectors = lines.after(done);
            return pwritev(file, vectors.data(), static_cast<int>(vectors.size()), block.offset + done);
        });
    }
    gather(geometry, block, staging());
    return write_run(file, staging(), span, block.offset);
}

}  // namespace accelera::io
