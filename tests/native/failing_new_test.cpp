// Each operation with the first, second, third ... allocation of an object failing: an error or the right
// result, nothing leaked, and the next attempt is right.
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "memory/arena.h"
#include "native/injection.h"
#include "native/random.h"
#include "planner/block_layout.h"
#include "tensora/base/spill_file.h"
#include "tensora/core/autograd.h"
#include "tensora/core/budget.h"
#include "tensora/functions.h"

using namespace accelera::tensora;

namespace {

using Values = std::vector<double>;

T counted(const Dims& shape, double first = 0) {
    const T x = Tensor::empty(shape, DType::f64);
    double* const data = x->data<double>();
    for (int64_t i = 0; i < shape.product(); ++i) data[i] = first + double(i) / 64;
    return x;
}

Values values_of(const T& x) {
    const T dense = cast(contiguous(x), DType::f64);
    const double* const data = dense->data<double>();
    return {data, data + dense->shape().product()};
}

/// Attempts until none of the allocations fails.
void attempt_all(const std::function<Values()>& operation, const std::function<Values()>& inputs) {
    const Values expected = operation(), before = inputs();
    operation();  // allocates the process-wide state
    const int64_t live = memory_stats(cpu).live_bytes;
    long number = 1;
    for (bool failed = true; failed; ++number) {
        CAPTURE(number);
        Values result;
        {
            const FailingNew failing(number);
            try {
                result = operation();
            } catch (const std::bad_alloc&) {
            } catch (const Error&) {
            }
            failed = failing.has_failed();
        }
        if (!result.empty()) REQUIRE(result == expected);
        REQUIRE(memory_stats(cpu).live_bytes == live);
        REQUIRE(inputs() == before);
        REQUIRE(operation() == expected);
        REQUIRE(number < 100'000);
    }
    MESSAGE((number - 1), " allocations");
}

T leaf(const Dims& shape, double first) {
    const T x = counted(shape, first);
    x->make_gradient().required = true;
    return x;
}

}  // namespace

TEST_CASE("failing new: immediate and deferred operations") {
    const T x = counted({40, 50}, 1), y = counted({50}, 2);
    const auto inputs = [&] { return values_of(concat({reshape(x, {2000}), y}, 0)); };
    const auto compute = [&] {
        return values_of(sum(exp(x * y / 4000.0) + abs(flip(x, {1})) / (y + 1.0), {0}, false));
    };
    const int64_t before = fusion_least();
    for (const int64_t min_elements : {int64_t(1), INT64_MAX}) {
        set_fusion_least(min_elements);
        attempt_all(compute, inputs);
    }
    set_fusion_least(before);
    attempt_all([&] { return values_of(matmul(x, mt(x))); }, inputs);
    attempt_all([&] { return values_of(argsort(x, 1, false, {})); }, inputs);
    attempt_all([&] { return values_of(concat({x, x}, 1)); }, inputs);
}

TEST_CASE("failing new: gradients") {
    const T a = leaf({6, 7}, 1), b = leaf({7, 5}, 2);
    const auto inputs = [&] { return values_of(a->detach()); };
    attempt_all(
        [&] {
            const T loss = sum(tanh(matmul(a, b) / 100.0) * 2.0, {0, 1}, false);
            const std::vector<T> gradients = run_backward({loss}, {T()}, {a, b}, {.accumulate = false});
            return values_of(concat({reshape(gradients[0], {42}), reshape(gradients[1], {35})}, 0));
        },
        inputs);
}

TEST_CASE("failing new: a graph ends in a thread that has run no operation") {
    // A destructor that allocated, such as for the thread's list of nodes, would end the process.
    for (long number = 1; number <= 3; ++number) {
        const T a = leaf({6, 7}, 1);
        T loss = sum(tanh(a) * exp(a) + a, {0, 1}, false);
        for (int i = 0; i < 2000; ++i) loss = loss + loss;  // a chain as deep as the stack of recursion
        std::thread([loss = std::move(loss), number]() mutable {
            const FailingNew failing(number);
            loss.reset();
        }).join();
    }
}

TEST_CASE("failing new: steps inside a budget, which spill") {
    const char* const folder = std::getenv("TMPDIR");
    std::vector<T> weights;
    for (int i = 0; i < 4; ++i) weights.push_back(leaf({32, 32}, i));
    const T x = counted({64, 32});
    for (const int64_t capacity : {1 << 20, 120'000}) {
        CAPTURE(capacity);
        const Ref<StepBudget> budget(new StepBudget(capacity, folder ? folder : "/tmp", cpu));
        attempt_all(
            [&] {
                budget->begin(capacity, nullptr);
                Values result;
                try {
                    T y = x;
                    for (const T& weight : weights) y = tanh(matmul(y, weight) / 100.0);
                    const T loss = sum(y * y, {0, 1}, false);
                    for (const T& gradient : run_backward({loss}, {T()}, weights, {.accumulate = false})) {
                        const Values part = values_of(gradient);
                        result.insert(result.end(), part.begin(), part.end());
                    }
                } catch (...) {
                    budget->end();
                    throw;
                }
                budget->end();
                return result;
            },
            [&] { return values_of(weights[2]->detach()); });
        CHECK(budget->used_bytes() == 0);
    }
}

TEST_CASE("failing new: records of operations") {
    const T x = counted({64});
    attempt_all(
        [&] {
            begin_record();
            try {
                values_of(x * 2.0 + x);
            } catch (...) {
                try {
                    end_record();
                } catch (const Error&) {
                }
                throw;
            }
            return Values{double(end_record().event_buffer.size())};
        },
        [&] { return values_of(x); });
}

TEST_CASE("failing new: arenas, ranges and spill files keep their accounts") {
    const char* const folder = std::getenv("TMPDIR");
    for (long number = 1; number < 60; ++number) {
        CAPTURE(number);
        RandomNumbers random{uint64_t(number)};
        auto* const arena = accelera::memory::Arena::create(1 << 20, [](int64_t) { return false; });
        arena->start_log();
        AddressRanges ranges(1 << 16);
        SpillFile file(folder ? folder : "/tmp");
        std::vector<void*> blocks;
        std::vector<int64_t> places, slots;
        const std::vector<char> bytes(1000, 'x');
        for (auto* list : {&places, &slots}) list->reserve(64);
        blocks.reserve(64);
        {
            const FailingNew failing(number);
            for (int i = 0; i < 12; ++i) {
                try {
                    if (void* const block = arena->allocate(2000 + 1000 * i)) blocks.push_back(block);
                } catch (const std::bad_alloc&) {
                }
                try {
                    if (const int64_t place = ranges.take(100 * i); place >= 0) places.push_back(place);
                } catch (const std::bad_alloc&) {
                }
                try {
                    slots.push_back(file.write(bytes.data(), 1000));
                } catch (const std::bad_alloc&) {
                } catch (const Error&) {
                }
                if (i % 3 == 2 && !blocks.empty()) {
                    arena->release(blocks.back());
                    blocks.pop_back();
                }
                if (i % 4 == 3 && !places.empty()) {
                    ranges.give(places.front());
                    places.erase(places.begin());
                }
            }
            for (void* const block : blocks) arena->release(block);
            for (const int64_t place : places) ranges.give(place);
        }
        CHECK(arena->ordinary_bytes() == 0);
        CHECK(ranges.used_bytes() == 0);
        CHECK(ranges.largest_gap() == 1 << 16);
        for (const int64_t slot : slots) {
            std::vector<char> read(1000);
            file.read(slot, read.data(), 1000);
            CHECK(read == bytes);
        }
        accelera::memory::Arena::retire(arena);
    }
}
