#include "cpu/tile_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <deque>
#include <new>

#include "cpu/strided_copy.h"
#include "cpu/tile_blocks.h"

namespace accelera::io {
namespace {

constexpr int64_t unlimited = INT64_MAX;
/// Through the page cache a request costs about as much as copying this many bytes.
constexpr int64_t cached_gap = 8 << 10;
/// Longer pieces are worth a request of their own.
constexpr int64_t joined_piece = 64 << 10;
/// Shorter lines in memory are gathered through the staging buffer instead of an iovec each.
constexpr int64_t shortest_vector = 1 << 10;
/// Pieces announced to the kernel ahead of the one being read, when they are not in the page cache.
constexpr size_t pieces_ahead = 32;
/// Written bytes whose write-back is started at once, so that dirty pages do not pile up.
constexpr int64_t early_writeback = 1 << 20;

class Staging {
  public:
    Staging() {
        void* pages =
            mmap(nullptr, staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) throw std::bad_alloc();
        bytes_ = static_cast<char*>(pages);
    }
    ~Staging() { munmap(bytes_, staging_bytes); }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    char* bytes() { return bytes_; }

  private:
    char* bytes_;
};

char* staging() {
    thread_local Staging buffer;
    return buffer.bytes();
}

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

void scatter(const Geometry& geometry, const Block& block, const char* staged) {
    strided_copy(block.memory, staged, copy_axes(geometry, block, true), geometry.itemsize());
}

void gather(const Geometry& geometry, const Block& block, char* staged) {
    strided_copy(staged, block.memory, copy_axes(geometry, block, false), geometry.itemsize());
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

/// Reads blocks in order. While they come from the page cache that is all; from the first one that does
/// not, the next ones are announced to the kernel, so that several requests are on their way at once.
class CachedReader {
  public:
    CachedReader(int file, const Geometry& geometry) : file_(file), geometry_(geometry) {}

    bool read(const Block& block) {
        if (waiting_.empty() && (!geometry_.scattered() || cached(block))) return take(block);
        announce(block);
        waiting_.push_back(block);
        return waiting_.size() < pieces_ahead || drain(pieces_ahead - 1);
    }

    Outcome finish() {
        drain(0);
        return outcome_;
    }

  private:
    /// Whether the first byte is in the page cache (a guess is enough: it only decides what to announce).
    bool cached(const Block& block) const {
        char byte;
        iovec probe{&byte, 1};
        return preadv2(file_, &probe, 1, block.offset, RWF_NOWAIT) == 1;
    }

    void announce(const Block& block) const {
        posix_fadvise(file_, block.offset, geometry_.span(block), POSIX_FADV_WILLNEED);
    }

    bool drain(size_t left) {
        while (outcome_.done && waiting_.size() > left) {
            take(waiting_.front());
            waiting_.pop_front();
        }
        return outcome_.done;
    }

    bool take(const Block& block) {
        outcome_ = read_block(file_, geometry_, block);
        return outcome_.done;
    }

    int file_;
    const Geometry& geometry_;
    std::deque<Block> waiting_;
    Outcome outcome_;
};

}  // namespace

Outcome read_region(const Region& region) {
    const Geometry geometry(region, cached_gap, joined_piece);
    if (geometry.empty()) return {};
    CachedReader reader(region.file, geometry);
    geometry.for_each_block(staging_bytes, unlimited, [&](const Block& block) { return reader.read(block); });
    return reader.finish();
}

Outcome write_region(const Region& region) {
    const Geometry geometry(region, 0, joined_piece);
    if (geometry.empty()) return {};
    Outcome outcome;
    geometry.for_each_block(staging_bytes, unlimited, [&](const Block& block) {
        outcome = write_block(region.file, geometry, block);
#ifdef __linux__
        if (geometry.span(block) >= early_writeback)
            sync_file_range(region.file, block.offset, geometry.span(block), SYNC_FILE_RANGE_WRITE);
#endif
        return outcome.done;
    });
    return outcome;
}

}  // namespace accelera::io
