#pragma once

#include <cstdint>
#include <vector>

#include "planner/block_layout.h"
#include "planner/step_plan.h"

namespace accelera::planner {

/// Way of a value to the spill file and back.
struct Transfer {
    int32_t value;
    int32_t out;               ///< number of the action
    int32_t in = -1;           ///< the same; -1: it does not come back
    int32_t block;             ///< that it leaves
    int32_t block_again = -1;  ///< that it comes back to
};

/// A point of a step's timeline, which blocks and actions stand on as well.
struct Moment {
    int32_t tick = 0;
    double seconds = 0;  ///< of operations before it, first and repeated runs
};

/// When a schedule does what.
struct Timeline {
    std::vector<Moment> before;  ///< by operation: nothing was done for it yet
    std::vector<Moment> starts;  ///< by operation: it runs next
    std::vector<int32_t> ticks;  ///< of actions
    std::vector<Transfer> transfers;
};

/// Has transfers go on while operations run: a block is given up later, and taken earlier, as far as the
/// channel needs the time, the live bytes stay below the schedule's peak, and the block finds a place below
/// its top. Where that is nowhere, the transfer stays one action.
///
/// The channel carries one transfer after the other, at `seconds_per_byte`.
void overlap_transfers(const Timeline& timeline, double seconds_per_byte, std::vector<Block>& blocks,
                       StepSchedule& schedule);

}  // namespace accelera::planner
