// Memory plans of captured programs: buffers that hold something at the same time never share bytes.
#include <algorithm>
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "tensora/jit/program.h"

using namespace accelera::tensora;

namespace {

CapturedOperand operand(int32_t buffer) {
    CapturedOperand result;
    result.buffer = buffer;
    return result;
}

/// Steps that each read some earlier buffers and write one of their own.
CapturedProgram random_program(RandomNumbers& random) {
    CapturedProgram program;
    const int64_t steps = random.between(1, 60);
    for (int64_t i = 0; i < steps; ++i) {
        CapturedStep step{};
        step.op = table().front();
        if (random.chance(4)) step.workspace_bytes = random.between(1, 10'000);
        for (int64_t reads = random.between(0, 3); reads > 0 && i > 0; --reads)
            step.inputs.push_back(operand(int32_t(std::max<int64_t>(0, i - random.between(1, 12)))));
        step.outputs.push_back(operand(int32_t(i)));
        program.steps.push_back(std::move(step));
        CapturedBuffer buffer{
            random.chance(8) ? CapturedBuffer::Kind::argument : CapturedBuffer::Kind::computed,
            random.between(0, 40'000)};
        buffer.kept = random.chance(9);
        program.buffers.push_back(std::move(buffer));
    }
    return program;
}

}  // namespace

TEST_CASE("placement: no two buffers with overlapping lifetimes overlap, nor does one cross the border") {
    for (uint64_t seed = 0; seed < 80; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        CapturedProgram program = random_program(random);
        place_buffers(program);
        const std::vector<Lifetime> lives = lifetimes(program);
        int64_t kept_bytes = 0, workspace = 0;
        for (const CapturedStep& step : program.steps) workspace = std::max(workspace, step.workspace_bytes);
        for (size_t i = 0; i < program.buffers.size(); ++i) {
            const CapturedBuffer& buffer = program.buffers[i];
            const bool placed = buffer.kind == CapturedBuffer::Kind::computed && !buffer.kept;
            REQUIRE((program.places[i] >= 0) == placed);
            if (buffer.kind == CapturedBuffer::Kind::computed && buffer.kept)
                kept_bytes += bytes_of_block(buffer.nbytes);
            if (!placed) continue;
            const int64_t begin = program.places[i], end = begin + buffer.nbytes;
            CHECK(begin % 64 == 0);
            CHECK(end <= program.arena.nbytes);
            CHECK((end <= program.arena.border || begin >= program.arena.border));
            for (size_t j = 0; j < i; ++j) {
                if (program.places[j] < 0 || !lives[i].meets(lives[j])) continue;
                const int64_t other = program.places[j];
                REQUIRE((end <= other || other + program.buffers[j].nbytes <= begin));
            }
        }
        CHECK(program.arena.nbytes >= program.arena.least_bytes);
        CHECK(program.kept_bytes == kept_bytes);
        CHECK(program.workspace_bytes == workspace);
        CHECK(program.peak_bytes() == program.arena_bytes() + kept_bytes + workspace);
    }
}

TEST_CASE("programs: steps that are left out leave the parts' ends where they were") {
    RandomNumbers random(2);
    CapturedProgram program = random_program(random);
    const size_t n = program.steps.size();
    program.parts.push_back({n / 2, {}});
    program.parts.push_back({n, {}});
    filter_steps(program, [](size_t i) { return i % 2 == 0; });
    CHECK(program.steps.size() == (n + 1) / 2);
    CHECK(program.parts[0].end == (n / 2 + 1) / 2);
    CHECK(program.parts[1].end == program.steps.size());
}
