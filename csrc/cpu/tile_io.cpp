#include "cpu/tile_io.h"

#include <fcntl.h>

#include <climits>
#include <deque>

#include "cpu/cached_io.h"
#include "cpu/direct_io.h"
#include "cpu/tile_blocks.h"

namespace accelera::io {
namespace {

constexpr int64_t unlimited = INT64_MAX;
/// A request costs about as much as moving this many bytes, through and around the page cache.
constexpr int64_t cached_gap = 8 << 10;
constexpr int64_t direct_gap = 16 << 10;
/// Longer pieces are worth a request of their own.
constexpr int64_t joined_piece = 64 << 10;
/// Pieces announced to the kernel ahead of the one being read, when they are not in the page cache.
constexpr size_t pieces_ahead = 32;
/// Written bytes whose write-back is started at once, so that dirty pages do not pile up.
constexpr int64_t early_writeback = 1 << 20;

/// Reads blocks in order. While they come from the page cache that is all; from the first one that does
/// not, the next ones are announced to the kernel, so that several requests are on their way at once.
class CachedReader {
  public:
    CachedReader(int file, const Geometry& geometry) : file_(file), geometry_(geometry) {}

    bool read(const Block& block) {
        const int64_t span = geometry_.span(block);
        if (waiting_.empty() && (!geometry_.scattered() || cached(file_, block.offset, span)))
            return take(block);
        posix_fadvise(file_, block.offset, span, POSIX_FADV_WILLNEED);
        waiting_.push_back(block);
        return drain(pieces_ahead - 1);
    }

    Outcome finish() {
        drain(0);
        return outcome_;
    }

  private:
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

Outcome read_through_cache(const Region& region) {
    const Geometry geometry(region, cached_gap, joined_piece);
    CachedReader reader(region.file, geometry);
    geometry.for_each_block(staging_bytes, unlimited, [&](const Block& b) { return reader.read(b); });
    return reader.finish();
}

Outcome read_around_cache(const Region& region, int64_t alignment) {
    const Geometry geometry(region, direct_gap, joined_piece);
    DirectMover mover(region, geometry, alignment);
    geometry.for_each_block(mover.block_limit(), unlimited, [&](const Block& b) { return mover.read(b); });
    return mover.finish();
}

Outcome write_through_cache(const Region& region, const Geometry& geometry) {
    Outcome outcome;
    geometry.for_each_block(staging_bytes, unlimited, [&](const Block& block) {
        outcome = write_block(region.file, geometry, block);
#ifdef SYNC_FILE_RANGE_WRITE
        if (geometry.span(block) >= early_writeback)
            sync_file_range(region.file, block.offset, geometry.span(block), SYNC_FILE_RANGE_WRITE);
#endif
        return outcome.done;
    });
    return outcome;
}

Outcome write_around_cache(const Region& region, const Geometry& geometry, int64_t alignment) {
    DirectMover mover(region, geometry, alignment);
    geometry.for_each_block(staging_bytes, unlimited, [&](const Block& b) { return mover.write(b); });
    return mover.finish();
}

bool empty(const Region& region) {
    for (const Axis& axis : region.axes)
        if (axis.count == 0) return true;
    return false;
}

}  // namespace

Outcome read_region(const Region& region) {
    if (empty(region)) return {};
    const int64_t alignment = direct_alignment(region.direct_file);
    return alignment ? read_around_cache(region, alignment) : read_through_cache(region);
}

Outcome write_region(const Region& region) {
    if (empty(region)) return {};
    const Geometry geometry(region, 0, joined_piece);
    const int64_t alignment = direct_alignment(region.direct_file);
    return alignment ? write_around_cache(region, geometry, alignment)
                     : write_through_cache(region, geometry);
}

}  // namespace accelera::io
