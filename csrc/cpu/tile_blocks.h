#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/tile_io.h"

namespace accelera::io {

/// A part of a region that one request covers: `lead` steps of axis `level`, whole axes after it.
struct Block {
    int64_t offset;
    char* memory;
    size_t level;
    int64_t lead;
};

/// A region with its axes sorted from slowest to fastest in the file, all strides in the file positive
/// and neighbours merged; it says which inner axes are close enough together for one request.
class Geometry {
  public:
    /// Pieces of at most `joined_piece` bytes with at most `gap` bytes between them share a request.
    Geometry(const Region& region, int64_t gap, int64_t joined_piece)
        : itemsize_(region.itemsize), offset_(region.offset), memory_(region.memory) {
        for (Axis axis : region.axes)
            if (axis.count != 1) add(axis);
        std::stable_sort(axes_.begin(), axes_.end(),
                         [](const Axis& a, const Axis& b) { return a.file_stride > b.file_stride; });
        merge();
        measure(gap, joined_piece);
    }

    const std::vector<Axis>& axes() const { return axes_; }
    int64_t itemsize() const { return itemsize_; }

    /// Bytes from a block's first to its last, gaps included.
    int64_t span(const Block& b) const {
        return b.level == axes_.size() ? itemsize_
                                       : (b.lead - 1) * axes_[b.level].file_stride + span_[b.level + 1];
    }
    int64_t payload(const Block& b) const {
        return b.level == axes_.size() ? itemsize_ : b.lead * payload_[b.level + 1];
    }
    /// One run of bytes in the file and in memory.
    bool contiguous(const Block& b) const { return contiguous(b.level); }
    /// No gap in the file.
    bool dense(const Block& b) const { return span(b) == payload(b); }
    /// Bytes from first to last of the parts that cannot share a request.
    int64_t piece_span() const { return span_[joined_]; }
    /// Whether the region needs more than one block even without a limit.
    bool scattered() const { return joined_ > 0; }

    /// Call `visit(block)` for blocks that cover the region once; spans stay within `limit`, or within
    /// `contiguous_limit` for those that are contiguous on both sides. Stops when `visit` returns false.
    template <class Visit>
    bool for_each_block(int64_t limit, int64_t contiguous_limit, Visit&& visit) const {
        return visit_axis(0, offset_, memory_, limit, contiguous_limit, visit);
    }

  private:
    void add(Axis axis) {
        if (axis.file_stride < 0) {
            offset_ += (axis.count - 1) * axis.file_stride;
            memory_ += (axis.count - 1) * axis.memory_stride;
            axis.file_stride = -axis.file_stride;
            axis.memory_stride = -axis.memory_stride;
        }
        axes_.push_back(axis);
    }

    void merge() {
        std::vector<Axis> merged;
        for (const Axis& axis : axes_) {
            if (!merged.empty() && merged.back().file_stride == axis.file_stride * axis.count &&
                merged.back().memory_stride == axis.memory_stride * axis.count)
                merged.back() = {merged.back().count * axis.count, axis.file_stride, axis.memory_stride};
            else
                merged.push_back(axis);
        }
        axes_ = std::move(merged);
    }

    void measure(int64_t gap, int64_t joined_piece) {
        const size_t n = axes_.size();
        span_.assign(n + 1, itemsize_);
        payload_.assign(n + 1, itemsize_);
        joined_ = n;
        for (size_t i = n; i-- > 0;) {
            span_[i] = (axes_[i].count - 1) * axes_[i].file_stride + span_[i + 1];
            payload_[i] = axes_[i].count * payload_[i + 1];
            const int64_t hole = axes_[i].file_stride - span_[i + 1];
            const bool near = hole == 0 || (hole > 0 && hole <= gap && span_[i + 1] <= joined_piece);
            if (near && joined_ == i + 1) joined_ = i;
        }
    }

    bool contiguous(size_t level) const {
        return level == axes_.size() || (level + 1 == axes_.size() && axes_[level].file_stride == itemsize_ &&
                                         axes_[level].memory_stride == itemsize_);
    }

    template <class Visit>
    bool visit_axis(size_t level, int64_t offset, char* memory, int64_t limit, int64_t contiguous_limit,
                    Visit& visit) const {
        if (level == axes_.size()) return visit(Block{offset, memory, level, 1});
        const Axis& axis = axes_[level];
        const int64_t allowed = contiguous(level) ? contiguous_limit : limit;
        int64_t group = 0;
        if (level >= joined_ && span_[level + 1] <= allowed)
            group = std::min(axis.count, 1 + (allowed - span_[level + 1]) / axis.file_stride);
        for (int64_t i = 0; i < axis.count; i += std::max<int64_t>(group, 1)) {
            const int64_t position = offset + i * axis.file_stride;
            char* place = memory + i * axis.memory_stride;
            const bool more = group ? visit(Block{position, place, level, std::min(group, axis.count - i)})
                                    : visit_axis(level + 1, position, place, limit, contiguous_limit, visit);
            if (!more) return false;
        }
        return true;
    }

    int64_t itemsize_, offset_;
    char* memory_;
    std::vector<Axis> axes_;
    std::vector<int64_t> span_, payload_;
    size_t joined_ = 0;
};

}  // namespace accelera::io
