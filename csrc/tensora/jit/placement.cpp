// Memory plan of a captured program: a place in one arena for each buffer that ends with the call.
#include <algorithm>
#include <numeric>

#include "tensora/jit/program.h"

namespace accelera::tensora {

namespace {

int64_t rounded(int64_t nbytes) { return (std::max<int64_t>(nbytes, 1) + 63) / 64 * 64; }

/// Lowest places, one buffer after the other, where each meets none of those before, and lies on one side of
/// `border`. The end of the highest.
int64_t place_in_order(const CapturedProgram& program, const std::vector<Lifetime>& lives,
                       const std::vector<int>& order, int64_t border, std::vector<int64_t>& places) {
    std::vector<int> placed;  // by place
    int64_t end = 0;
    for (const int buffer : order) {
        const int64_t nbytes = rounded(program.buffers[size_t(buffer)].nbytes);
        const auto beside_border = [&](int64_t place) {
            return place < border && place + nbytes > border ? border : place;
        };
        int64_t at = beside_border(0);
        for (const int other : placed) {
            if (!lives[size_t(other)].meets(lives[size_t(buffer)])) continue;
            if (places[size_t(other)] >= at + nbytes) break;
            at = beside_border(
                std::max(at, places[size_t(other)] + rounded(program.buffers[size_t(other)].nbytes)));
        }
        places[size_t(buffer)] = at;
        end = std::max(end, at + nbytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer,
                                       [&](int a, int b) { return places[size_t(a)] < places[size_t(b)]; }),
                      buffer);
    }
    return end;
}

/// Bytes of the largest block of the allocator that is no larger.
int64_t largest_block(int64_t nbytes) {
    int64_t block = nbytes;
    while (block > 0 && bytes_of_block(block) > nbytes) block = block * 7 / 8;
    return block > 0 ? bytes_of_block(block) : 0;
}

/// What a block takes of the allocator.
int64_t block_bytes(Device device, int64_t nbytes) {
    return device.is_cpu() ? bytes_of_block(nbytes) : (std::max<int64_t>(nbytes, 1) + 511) / 512 * 512;
}

/// Places the buffers of one device that end with the call.
class Placement {
  public:
    Placement(CapturedProgram& program, const std::vector<Lifetime>& lives, Device device)
        : program_(program), lives_(lives), device_(device) {
        for (size_t i = 0; i < program.buffers.size(); ++i) {
            const CapturedBuffer& buffer = program.buffers[i];
            if (buffer.kind == CapturedBuffer::Kind::computed && !buffer.kept && buffer.device == device &&
                lives[i].first >= 0)
                order_.push_back(int(i));
        }
    }

    ArenaPlan plan() {
        const auto nbytes = [&](int buffer) { return program_.buffers[size_t(buffer)].nbytes; };
        const auto length = [&](int buffer) {
            return lives_[size_t(buffer)].last - lives_[size_t(buffer)].first;
        };
        best_.nbytes = INT64_MAX;
        attempt_both([&](int a, int b) { return nbytes(a) > nbytes(b); });
        attempt_both(
            [&](int a, int b) { return double(nbytes(a)) * length(a) > double(nbytes(b)) * length(b); });
        attempt_both([&](int a, int b) { return length(a) > length(b); });
        for (const int buffer : order_) program_.places[size_t(buffer)] = places_[size_t(buffer)];
        best_.least_bytes = least_bytes();
        return best_;
    }

  private:
    template <typename Before>
    void attempt_both(Before before) {
        std::stable_sort(order_.begin(), order_.end(), before);
        const int64_t end = attempt(0);
        // A block of a device is as large as it is asked for.
        if (end && device_.is_cpu()) attempt(largest_block(end));
    }

    int64_t attempt(int64_t border) {
        std::vector<int64_t> places(program_.buffers.size(), -1);
        const int64_t end = place_in_order(program_, lives_, order_, border, places);
        const int64_t rest = std::max<int64_t>(0, end - border);
        const int64_t taken =
            (border ? block_bytes(device_, border) : 0) + (rest ? block_bytes(device_, rest) : 0);
        if (taken >= best_.nbytes) return end;
        best_.nbytes = taken;
        best_.border = border;
        places_ = std::move(places);
        return end;
    }

    int64_t least_bytes() const {
        std::vector<int64_t> change(program_.steps.size() + 1);
        for (const int buffer : order_) {
            const int64_t nbytes = rounded(program_.buffers[size_t(buffer)].nbytes);
            change[size_t(lives_[size_t(buffer)].first)] += nbytes;
            change[size_t(lives_[size_t(buffer)].last) + 1] -= nbytes;
        }
        std::partial_sum(change.begin(), change.end(), change.begin());
        return *std::max_element(change.begin(), change.end());
    }

    CapturedProgram& program_;
    const std::vector<Lifetime>& lives_;
    Device device_;
    std::vector<int> order_;
    std::vector<int64_t> places_;
    ArenaPlan best_;
};

}  // namespace

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

void place_buffers(CapturedProgram& program) {
    const std::vector<Lifetime> lives = lifetimes(program);
    program.kept_bytes = program.workspace_bytes = 0;
    for (const CapturedBuffer& buffer : program.buffers)
        if (buffer.kind == CapturedBuffer::Kind::computed && buffer.kept)
            program.kept_bytes += block_bytes(buffer.device, buffer.nbytes);
    for (const CapturedStep& step : program.steps)
        program.workspace_bytes = std::max(program.workspace_bytes, step.workspace_bytes);
    program.places.assign(program.buffers.size(), -1);
    program.arena = Placement(program, lives, cpu).plan();
    if (!program.device.is_cpu()) program.device_arena = Placement(program, lives, program.device).plan();
}

}  // namespace accelera::tensora
