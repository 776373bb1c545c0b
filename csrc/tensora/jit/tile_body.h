#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensora/jit/program.h"

namespace accelera::tensora {

/// Operations of a tile on one row of a known length.
struct TileBody {
    /// Elements that a step reads or writes: a window of a buffer.
    struct Window {
        int32_t buffer;
        int64_t offset, stride;  ///< in elements
        DType dtype;
    };
    struct Step {
        const char* name;                  ///< "where", "cast", the name of a formula or of a reduction
        DType operands;                    ///< type that a formula's inputs have
        Loop loop = nullptr;               ///< of an elementwise step
        const Reducer* reducer = nullptr;  ///< of a reduction
        int64_t n = 1;                     ///< elements that it makes, or folds
        std::vector<Window> inputs{};
        Window output{};
    };
    /// Where a buffer lies: rows of an input or output, a constant, or memory that ends with the row.
    struct Place {
        CapturedBuffer::Kind kind = CapturedBuffer::Kind::computed;  ///< `outside`: of an output
        int number = -1;                                             ///< of the input or output
        T constant{};
        int64_t offset = 0;  ///< in the memory of a row
    };
    int64_t length = 0;
    std::vector<Step> steps;
    std::vector<Place> places;
    std::vector<Call::Output> results;  ///< shapes of one row's
    int64_t workspace_bytes = 0;        ///< what a row needs on the CPU

    int32_t add_scratch(int64_t nbytes);
};

/// The body of a captured function of rows; raises, naming the kernel, where it is none.
std::shared_ptr<const TileBody> tile_body(const CapturedProgram& program, const std::string& name,
                                          int64_t length);

}  // namespace accelera::tensora
