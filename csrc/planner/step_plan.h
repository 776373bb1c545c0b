#pragma once

#include <cstdint>
#include <vector>

#include "planner/activation_plan.h"

namespace accelera::planner {

/// A training step as it was logged: operations in order, and the values that they read, write and make.
///
/// Values in the arena that end with the step can leave between two uses. All others are always there.
struct StepGraph {
    std::vector<double> seconds;
    std::vector<int64_t> workspace;
    std::vector<uint8_t> pure;  ///< may run again
    Lists reads, writes, births;
    std::vector<int64_t> nbytes;
    std::vector<int32_t> born, freed;   ///< operations; -1: before the step, INT32_MAX: not in it
    std::vector<uint8_t> fixed;         ///< others see its memory: it never leaves
    std::vector<int64_t> packed_bytes;  ///< of its shorter form without loss; 0: it has none
    std::vector<double> pack_seconds;   ///< into that form and back
};

struct StepPrices {
    double spill_s_per_byte = 0;  ///< out and back
    int64_t least_bytes = 0;      ///< smaller values stay
};

/// What becomes of a value between two uses.
enum class GapFate : uint8_t {
    keep,
    recompute,       ///< what is made on the way and needed later stays
    recompute_lazy,  ///< it does not
    offload,
    pack  ///< into its shorter form
};

/// A value between two uses that follow each other.
struct Gap {
    int32_t value;
    int32_t after;   ///< operation of the earlier use
    int32_t before;  ///< of the later one
};

struct StepChoice {
    std::vector<GapFate> fates;  ///< by gap
    double seconds = 0;          ///< that it adds
    int64_t peak_bytes = 0;      ///< most live at once; the arena's top in tiny steps
};

/// Memory of a step under fates.
struct StepMemory {
    int64_t top_bytes;   ///< of the arena
    int64_t live_bytes;  ///< most at once
};

/// One thing to do between operations.
struct PlannedAction {
    enum Kind : uint8_t {
        run,        ///< operation `subject` again
        drop,       ///< the contents of value `subject`
        out,        ///< value `subject` to the spill file
        in,         ///< and back
        pack,       ///< value `subject` into its shorter form
        unpack,     ///< and back
        out_begin,  ///< to the spill file while operations run: the block is given up at the end
        out_end,
        in_begin,  ///< the block is taken at the beginning
        in_end
    };
    int32_t operation;
    uint8_t after;
    uint8_t kind;
    int32_t subject;
};

struct StepSchedule {
    std::vector<PlannedAction> actions;
    std::vector<int64_t> places;  ///< of blocks, in order of their allocation
    int64_t top_bytes = 0;
    int64_t live_bytes = 0;
    double seconds = 0;
};

/// Uses of values of at least `least_bytes` between which something else happens.
std::vector<Gap> gaps_of(const StepGraph& graph, int64_t least_bytes);

/// Choices of rising time and falling peak. They do not depend on the budget; so a smaller one, which selects
/// the first whose arena fits it, selects a later choice, and never takes more memory.
///
/// Seconds and peaks are those of a replay of the whole step; `StepSearch` says how choices are found. Those
/// that save less than a thousandth of the step's time are left out.
std::vector<StepChoice> plan_step(const StepGraph& graph, const StepPrices& prices);

/// The arena's top with the blocks of a choice laid out, which takes longer than a replay.
StepMemory memory_of_step(const StepGraph& graph, const StepPrices& prices,
                          const std::vector<GapFate>& fates);

/// All that a choice does, with the place of every block. With `overlap`, transfers go on while operations
/// run, as far as that raises neither the live bytes nor the top.
StepSchedule schedule_step(const StepGraph& graph, const StepPrices& prices,
                           const std::vector<GapFate>& fates, bool overlap);

/// What fates add to a step's time; infinite when a value cannot be made again.
double added_seconds(const StepGraph& graph, const StepPrices& prices, const std::vector<GapFate>& fates);

}  // namespace accelera::planner
