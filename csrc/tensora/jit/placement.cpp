// Memory plan of a captured program: a place in one arena for each buffer that ends with the call.
#include <algorithm>
#include <numeric>

#include "tensora/jit/program.h"

namespace accelera::tensora {

namespace {

/// Steps between which a buffer holds something.
struct Lifetime {
    int first = -1, last = -1;
    bool meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Lifetime> lifetimes(const CapturedProgram& program) {
    std::vector<Lifetime> result(program.buffers.size());
    for (size_t i = 0; i < program.steps.size(); ++i)
        for (const auto* operands : {&program.steps[i].inputs, &program.steps[i].outputs})
            for (const CapturedOperand& operand : *operands) {
                Lifetime& one = result[size_t(operand.buffer)];
                if (one.first < 0) one.first = int(i);
                one.last = int(i);
            }
    return result;
}

int64_t rounded(int64_t nbytes) { return (std::max<int64_t>(nbytes, 1) + 63) / 64 * 64; }

/// Lowest places, one buffer after the other, where each meets none of those before. The end of the highest.
int64_t place_in_order(const CapturedProgram& program, const std::vector<Lifetime>& lives,
                       const std::vector<int>& order, std::vector<int64_t>& places) {
    std::vector<int> placed;  // by place
    int64_t end = 0;
    for (const int buffer : order) {
        const int64_t nbytes = rounded(program.buffers[size_t(buffer)].nbytes);
        int64_t at = 0;
        for (const int other : placed) {
            if (!lives[size_t(other)].meets(lives[size_t(buffer)])) continue;
            if (places[size_t(other)] >= at + nbytes) break;
            at = std::max(at, places[size_t(other)] + rounded(program.buffers[size_t(other)].nbytes));
        }
        places[size_t(buffer)] = at;
        end = std::max(end, at + nbytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer,
                                       [&](int a, int b) { return places[size_t(a)] < places[size_t(b)]; }),
                      buffer);
    }
    return end;
}

}  // namespace

void place_buffers(CapturedProgram& program) {
    const std::vector<Lifetime> lives = lifetimes(program);
    std::vector<int> order;
    std::vector<int64_t> change(program.steps.size() + 1);
    program.kept_bytes = program.workspace_bytes = 0;
    for (size_t i = 0; i < program.buffers.size(); ++i) {
        const CapturedBuffer& buffer = program.buffers[i];
        if (buffer.kind != CapturedBuffer::Kind::computed) continue;
        if (buffer.kept) {
            program.kept_bytes += bytes_of_block(buffer.nbytes);
        } else if (lives[i].first >= 0) {
            order.push_back(int(i));
            change[size_t(lives[i].first)] += rounded(buffer.nbytes);
            change[size_t(lives[i].last) + 1] -= rounded(buffer.nbytes);
        }
    }
    for (const CapturedStep& step : program.steps)
        program.workspace_bytes = std::max(program.workspace_bytes, step.workspace_bytes);
    std::partial_sum(change.begin(), change.end(), change.begin());
    program.least_bytes = *std::max_element(change.begin(), change.end());

    const auto nbytes = [&](int buffer) { return program.buffers[size_t(buffer)].nbytes; };
    const auto length = [&](int buffer) { return lives[size_t(buffer)].last - lives[size_t(buffer)].first; };
    int64_t best = INT64_MAX;
    std::vector<int64_t> places(program.buffers.size(), -1);
    const auto attempt = [&](auto before) {
        std::stable_sort(order.begin(), order.end(), before);
        const int64_t end = place_in_order(program, lives, order, places);
        if (end < best) {
            best = end;
            program.places = places;
        }
    };
    attempt([&](int a, int b) { return nbytes(a) > nbytes(b); });
    attempt([&](int a, int b) { return double(nbytes(a)) * length(a) > double(nbytes(b)) * length(b); });
    attempt([&](int a, int b) { return length(a) > length(b); });
    program.arena_bytes = best ? bytes_of_block(best) : 0;
}

}  // namespace accelera::tensora
