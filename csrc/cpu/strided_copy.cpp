#include "cpu/strided_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace accelera::io {
namespace {

struct Wide {
    uint64_t low, high;
};

/// A square of a transposition small enough for the first-level cache.
constexpr int64_t square = 32;

template <class Item>
void copy_line(char* target, const char* source, const CopyAxis& line) {
    for (int64_t i = 0; i < line.count; ++i)
        std::memcpy(target + i * line.target_stride, source + i * line.source_stride, sizeof(Item));
}

template <class Item>
void copy_squares(char* target, const char* source, const CopyAxis& outer, const CopyAxis& inner) {
    for (int64_t j = 0; j < inner.count; j += square) {
        const CopyAxis part{std::min(square, inner.count - j), inner.target_stride, inner.source_stride};
        for (int64_t i = 0; i < outer.count; ++i)
            copy_line<Item>(target + i * outer.target_stride + j * inner.target_stride,
                            source + i * outer.source_stride + j * inner.source_stride, part);
    }
}

template <class Item>
void copy_plane(char* target, const char* source, const CopyAxis& outer, const CopyAxis& inner) {
    for (int64_t i = 0; i < outer.count; i += square) {
        const CopyAxis part{std::min(square, outer.count - i), outer.target_stride, outer.source_stride};
        copy_squares<Item>(target + i * outer.target_stride, source + i * outer.source_stride, part, inner);
    }
}

template <class Item>
void copy_items(char* target, const char* source, const CopyAxis* axes, size_t count) {
    if (count == 0) {
        std::memcpy(target, source, sizeof(Item));
    } else if (count == 1) {
        copy_line<Item>(target, source, axes[0]);
    } else if (count == 2) {
        copy_plane<Item>(target, source, axes[0], axes[1]);
    } else {
        for (int64_t i = 0; i < axes[0].count; ++i)
            copy_items<Item>(target + i * axes[0].target_stride, source + i * axes[0].source_stride, axes + 1,
                             count - 1);
    }
}

/// Lines of `bytes` bytes that are adjacent on both sides.
void copy_lines(char* target, const char* source, const CopyAxis* axes, size_t count, int64_t bytes) {
    if (count == 0) {
        std::memcpy(target, source, static_cast<size_t>(bytes));
        return;
    }
    for (int64_t i = 0; i < axes[0].count; ++i)
        copy_lines(target + i * axes[0].target_stride, source + i * axes[0].source_stride, axes + 1,
                   count - 1, bytes);
}

}  // namespace

void strided_copy(char* target, const char* source, std::vector<CopyAxis> axes, int64_t itemsize) {
    std::stable_sort(axes.begin(), axes.end(), [](const CopyAxis& a, const CopyAxis& b) {
        return std::llabs(a.target_stride) > std::llabs(b.target_stride);
    });
    int64_t line = itemsize;
    while (!axes.empty() && axes.back().target_stride == line && axes.back().source_stride == line) {
        line *= axes.back().count;
        axes.pop_back();
    }
    const size_t n = axes.size();
    if (line != itemsize) return copy_lines(target, source, axes.data(), n, line);
    switch (itemsize) {
        case 1:
            return copy_items<uint8_t>(target, source, axes.data(), n);
        case 2:
            return copy_items<uint16_t>(target, source, axes.data(), n);
        case 4:
            return copy_items<uint32_t>(target, source, axes.data(), n);
        case 8:
            return copy_items<uint64_t>(target, source, axes.data(), n);
        case 16:
            return copy_items<Wide>(target, source, axes.data(), n);
        default:
            return copy_lines(target, source, axes.data(), n, itemsize);
    }
}

}  // namespace accelera::io
