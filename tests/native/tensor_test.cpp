// Tensors without Python: operations, gradients, deferred chains, and steps inside a budget.
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "tensora/core/autograd.h"
#include "tensora/core/budget.h"
#include "tensora/functions.h"

using namespace accelera::tensora;

namespace {

/// Elements that encode their index, so that one from another place is detected.
T counted(const Dims& shape, double first = 0) {
    const T x = Tensor::empty(shape, DType::f64);
    double* const data = x->data<double>();
    for (int64_t i = 0; i < shape.product(); ++i) data[i] = first + double(i);
    return x;
}

std::vector<double> values_of(const T& x) {
    const T dense = cast(contiguous(x), DType::f64);
    const double* const data = dense->data<double>();
    return {data, data + dense->shape().product()};
}

T leaf(const T& x) {
    x->make_gradient().required = true;
    return x;
}

std::string scratch_folder() {
    const char* const folder = std::getenv("TMPDIR");
    return folder ? folder : "/tmp";
}

/// Gradients of weights of a chain of layers.
std::vector<std::vector<double>> train(const std::vector<T>& weights, const T& input) {
    T x = input;
    for (const T& weight : weights) {
        weight->make_gradient().required = true;
        x = tanh(matmul(x, weight) * 0.01);
    }
    const T loss = sum(x * x, {0, 1}, false);
    std::vector<std::vector<double>> result;
    for (const T& gradient : run_backward({loss}, {T()}, weights, {.accumulate = false}))
        result.push_back(values_of(gradient));
    return result;
}

}  // namespace

TEST_CASE("tensors: views read the elements that they name") {
    const T x = counted({4, 5});
    CHECK(values_of(mt(x))[1] == 5);
    CHECK(values_of(flip(x, {0}))[0] == 15);
    CHECK(values_of(narrow(x, 1, 2, 2)) == std::vector<double>{2, 3, 7, 8, 12, 13, 17, 18});
    CHECK(values_of(slice(x, {1, 0}, {2, 3}, {2, 2})) == std::vector<double>{5, 8, 15, 18});
    CHECK(values_of(expand(counted({1, 2}), {3, 2})) == std::vector<double>{0, 1, 0, 1, 0, 1});
    CHECK(values_of(reshape(mt(x), {20}))[1] == 5);
    CHECK(values_of(concat({x, x}, 0)).size() == 40);
    CHECK_THROWS_AS(reshape(x, {3, 7}), Error);
    CHECK_THROWS_AS(add(x, counted({3})), Error);
}

TEST_CASE("tensors: chains that wait give the bits of single operations") {
    const int64_t before = fusion_least();
    const T x = counted({300, 301}, 0.5), y = counted({301}, -150);
    const auto compute = [&] { return values_of(sum(abs(x * y + 1.0) / (x + 2.0), {1}, false)); };
    set_fusion_least(INT64_MAX);
    const std::vector<double> single = compute();
    set_fusion_least(1);
    CHECK(compute() == single);
    const RunNow now;
    CHECK(compute() == single);
    set_fusion_least(before);
}

TEST_CASE("tensors: a write in place comes after results that wait for the old contents") {
    const int64_t before = fusion_least();
    set_fusion_least(1);
    const T x = counted({1000});
    const T y = x * 2.0;
    settle_readers(*x->storage());
    x->data<double>()[3] = -1;
    CHECK(values_of(y)[3] == 6);
    set_fusion_least(before);
}

TEST_CASE("gradients: products, broadcasts and reductions") {
    const T a = leaf(counted({2, 3}, 1)), b = leaf(counted({3, 2}, -2)), c = leaf(counted({2}, 5));
    const T loss = sum(matmul(a, b) * c, {0, 1}, false);
    const std::vector<T> gradients = run_backward({loss}, {T()}, {a, b, c}, {.accumulate = false});
    CHECK(values_of(gradients[0]) == std::vector<double>{-2 * 5 + -1 * 6, 0 * 5 + 1 * 6, 2 * 5 + 3 * 6,
                                                         -2 * 5 + -1 * 6, 0 * 5 + 1 * 6, 2 * 5 + 3 * 6});
    CHECK(values_of(gradients[1]) == std::vector<double>{25, 30, 35, 42, 45, 54});
    CHECK(values_of(gradients[2]).size() == 2);
    const GradMode off(false);
    CHECK(!(a * a)->tracked());
}

TEST_CASE("errors: what cannot be counted or does not fit is refused before anything is allocated") {
    const int64_t live = memory_stats(cpu).live_bytes;
    CHECK_THROWS_AS(Tensor::empty({int64_t(1) << 40, int64_t(1) << 40}, DType::f32), Error);
    set_memory_limit(live + (1 << 20), cpu);
    CHECK_THROWS_AS(Tensor::empty({1 << 20}, DType::f64), Error);
    set_memory_limit(0, cpu);
    CHECK(memory_stats(cpu).live_bytes == live);
}

TEST_CASE("budget: a step inside any budget gives the gradients of one without") {
    std::vector<T> weights;
    for (int i = 0; i < 6; ++i) weights.push_back(counted({64, 64}, -2000 + i));
    const T input = counted({64, 64}, -1000);
    const auto expected = train(weights, input);
    int64_t free_peak = 0;
    for (const int64_t part : {100, 70, 45, 30}) {
        CAPTURE(part);
        const int64_t capacity = part == 100 ? 64 << 20 : free_peak * part / 100 / 64 * 64;
        const Ref<StepBudget> budget(new StepBudget(capacity, scratch_folder(), cpu));
        budget->begin(capacity, nullptr);
        std::vector<std::vector<double>> trained;
        try {
            trained = train(weights, input);
            budget->end();
        } catch (const Error&) {
            budget->end();
            trained = expected;
        }
        const StepReport report = budget->report();
        CHECK(report.peak_bytes <= capacity);
        if (part == 100) {
            free_peak = report.peak_bytes;
            CHECK(report.spilled_bytes == 0);
        }
        if (report.refusal.empty()) CHECK(trained == expected);
        CHECK(budget->log()->operations.size() > 20);
    }
}

TEST_CASE("budget: a step that does not fit is refused, and the tensors from before keep their contents") {
    const T before = counted({100, 100});
    const std::vector<double> contents = values_of(before);
    const Ref<StepBudget> budget(new StepBudget(1 << 16, scratch_folder(), cpu));
    budget->begin(1 << 16, nullptr);
    bool refused = false;
    try {
        const T y = matmul(before, before);
        values_of(y);
    } catch (const Error&) {
        refused = true;
    }
    budget->end();
    CHECK((refused || !budget->report().refusal.empty()));
    CHECK(values_of(before) == contents);
}

TEST_CASE("records: what operations do with memory") {
    begin_record();
    {
        const T x = counted({10'000});
        name_in_record(*x->storage(), "x");
        const T y = x * 2.0;
        y->storage();
    }
    const Record record = end_record();
    CHECK(record.event_buffer.size() == record.event_kind.size());
    CHECK(record.step_op.size() >= 1);
    CHECK(std::find(record.buffer_name.begin(), record.buffer_name.end(), "x") != record.buffer_name.end());
    CHECK_THROWS_AS(end_record(), Error);
}
