#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accelera::planner {

/// What becomes of a tensor between its last use in the forward pass and its first in the backward pass.
enum class Fate : uint8_t { Keep, Pack, Recompute, Offload };

/// Rows of different lengths, one after the other.
struct Lists {
    std::vector<int64_t> starts;  // one more than there are rows
    std::vector<int32_t> items;

    const int32_t* begin(int64_t row) const { return items.data() + starts[static_cast<size_t>(row)]; }
    const int32_t* end(int64_t row) const { return items.data() + starts[static_cast<size_t>(row) + 1]; }
};

/// One training step: what is allocated when, and from what each value is computed.
///
/// Times are positions in the log of allocations. `base` is what is allocated at each of them without saved
/// values that are idle: a value is there until `idle_from`, when the forward pass has no more use for it,
/// and from the time it is brought back, at the latest `needed`, to `ends`. Values that are not saved have
/// `needed` -1.
struct Step {
    std::vector<int64_t> base;
    std::vector<int64_t> nbytes;
    std::vector<int32_t> producer;  // operation, or -1
    std::vector<int64_t> idle_from;
    std::vector<int64_t> needed;
    std::vector<int64_t> ends;
    std::vector<uint8_t> packable;
    std::vector<double> seconds;  // of each operation
    std::vector<uint8_t> pure;    // whether it may be carried out again
    Lists reads;                  // values that an operation needs
    Lists makes;                  // values that it makes
};

struct Prices {
    double offload_s_per_byte = 0;  // out and back
    double pack_s_per_byte = 0;     // to a mask and back
    int64_t packed_ratio = 4;       // bytes of a value by bytes of its mask
    int64_t least_bytes = 0;        // smaller values are always kept
};

/// A choice of fates, what it adds to a step's time, and the peak of what is allocated.
struct ActivationPlan {
    int64_t peak_bytes;
    double seconds;
    std::vector<Fate> fates;
};

/// A time at which values are computed again: the operations, in their order.
struct Recomputation {
    int32_t value;  // for which it happens
    std::vector<int32_t> operations;
};

/// What is computed again under `fates`, in the order of the backward pass.
std::vector<Recomputation> recomputations(const Step& step, const Prices& prices,
                                          const std::vector<Fate>& fates);

/// Plans of falling peak and rising time; the first adds no time, so it keeps all but what costs nothing.
///
/// 1. Of the values that are idle at the peak, the one leaves that adds the least seconds per byte, by
///    packing, recomputing or offloading, whichever is cheapest; seconds and peak are those of a replay of
///    the step.
/// 2. A change that raises the peak is undone, and tried no more until step 3 changes something.
/// 3. Where nothing at the peak can leave, values that are packed or recomputed there are offloaded instead:
///    computing them needs their operands in memory. It ends when that does not lower the peak either, so
///    the last plan takes no more than offloading everything.
///
/// Plans do not depend on the budget, so a smaller budget, which selects a later one, never takes more
/// memory.
std::vector<ActivationPlan> plan_activations(const Step& step, const Prices& prices);

}  // namespace accelera::planner
