#include "trace/miss_curve.h"

#include <algorithm>

namespace accelera::trace {
namespace {

struct Need {
    int64_t capacity_bytes;
    int64_t own_bytes;
};

/// Sort by capacity: eleven bits at a time, lowest first.
void sort(std::vector<Need>& needs) {
    constexpr unsigned digit_bits = 11;
    constexpr int64_t digit_mask = (1 << digit_bits) - 1;
    int64_t largest = 0;
    for (const Need& need : needs) largest = std::max(largest, need.capacity_bytes);
    std::vector<Need> sorted(needs.size());
    for (unsigned shift = 0; shift < 63 && largest >> shift != 0; shift += digit_bits) {
        std::vector<size_t> begin(digit_mask + 2, 0);
        for (const Need& need : needs) ++begin[((need.capacity_bytes >> shift) & digit_mask) + 1];
        for (size_t digit = 1; digit < begin.size(); ++digit) begin[digit] += begin[digit - 1];
        for (const Need& need : needs) sorted[begin[(need.capacity_bytes >> shift) & digit_mask]++] = need;
        needs.swap(sorted);
    }
}

}  // namespace

MissCurve sum_up_needs(Span<Id> buffer, Span<int64_t> needed_bytes, Span<int64_t> size_bytes) {
    std::vector<Need> needs;
    needs.reserve(needed_bytes.size);
    for (size_t i = 0; i < needed_bytes.size; ++i)
        if (needed_bytes[i] >= 0)
            needs.push_back({needed_bytes[i], size_bytes[static_cast<size_t>(buffer[i])]});
    sort(needs);
    MissCurve curve;
    int64_t hits = 0, hit_bytes = 0;
    for (size_t i = 0; i < needs.size(); ++i) {
        ++hits;
        hit_bytes += needs[i].own_bytes;
        if (i + 1 < needs.size() && needs[i + 1].capacity_bytes == needs[i].capacity_bytes) continue;
        curve.capacity_bytes.push_back(needs[i].capacity_bytes);
        curve.hits.push_back(hits);
        curve.hit_bytes.push_back(hit_bytes);
    }
    return curve;
}

}  // namespace accelera::trace
