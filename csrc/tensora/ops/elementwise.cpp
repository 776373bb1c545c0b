// Entries of the elementwise operations. Their formulas are in kernels/formulas.def; here are their
// gradients.
#include <atomic>
#include <cmath>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/core/budget.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/jit/capture.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

std::atomic<DType> float_of_integers{DType::f32};

DType common_type(const Call& call) {
    DType dtype = call.in[0]->dtype();
    for (size_t i = 1; i < call.in.size(); ++i) dtype = promote(dtype, call.in[i]->dtype());
    return dtype;
}

}  // namespace

DType default_float() { return float_of_integers.load(std::memory_order_relaxed); }
void set_default_float(DType dtype) {
    require(is(dtype, floats), "[set_default_dtype] ", name_of(dtype), "; give a real floating-point type");
    float_of_integers.store(dtype);
}

DType loop_type(const Call& call) {
    const DType dtype = common_type(call);
    if (call.op.loops->of[int(dtype)].loop) return dtype;
    const DType wider = default_float();
    if (is(dtype, integers | booleans) && !call.op.loops->of[int(DType::i64)].loop &&
        call.op.loops->of[int(DType::f32)].loop)
        return wider;
    fail(Kind::dtype, "[", call.op.name, "] not defined for ", name_of(dtype));
}

void elementwise_rule(Call& call) {
    const DType dtype = loop_type(call);
    Dims shape = call.in[0]->shape();
    for (size_t i = 1; i < call.in.size(); ++i)
        if (!(shape == call.in[i]->shape())) shape = broadcast(shape, call.in[i]->shape(), call.op.name);
    call.make(shape, call.op.loops->of[int(dtype)].out);
}

namespace {

/// The operation as a kernel of its own on a CUDA device.
void run_fused(const Call& call, const Tensor& out, DType dtype) {
    cuda::FusedProgram program{out.device(), out.shape(), {call.in.begin(), call.in.end()}, {}};
    cuda::FusedProgram::Step step{call.op.name, dtype, out.dtype(), {}, int(call.in.size()), &out};
    for (size_t i = 0; i < call.in.size(); ++i) {
        step.sources[i] = -1 - int(i);
        const DType given = call.in[i]->dtype();
        const bool condition = !call.op.loops && call.in.size() == 3 && i == 0;
        if (given == dtype || condition) continue;
        program.steps.push_back({"cast", given, dtype, {-1 - int(i)}, 1});
        step.sources[i] = int(program.steps.size()) - 1;
    }
    program.steps.push_back(step);
    cuda::run_fused(program);
}

void run_loop(const Call& call, const Tensor& out, DType dtype) {
    if (!out.device().is_cpu()) return run_fused(call, out, dtype);
    const Loop loop = call.op.loops->of[int(dtype)].loop;
    const int n = int(call.in.size());
    bool direct = out.size() <= grain && out.contiguous();
    for (int i = 0; i < n && direct; ++i) {
        const Tensor& in = *call.in[i];
        direct = in.dtype() == dtype && (in.size() == 1 || (in.contiguous() && in.size() == out.size()));
    }
    if (direct) {
        const char* data[3];
        int64_t steps[3];
        for (int i = 0; i < n; ++i) {
            data[i] = call.in[i]->bytes();
            steps[i] = call.in[i]->size() == 1 ? 0 : size_of(dtype);
        }
        if (out.size() == 1)
            for (int i = 0; i < n; ++i) steps[i] = size_of(dtype);
        loop(out.size(), out.bytes(), size_of(out.dtype()), data, steps);
        return;
    }
    T converted[3];
    Lines lines(out.shape());
    lines.add(out);
    for (int i = 0; i < n; ++i) {
        converted[i] = call.in[i];
        if (converted[i]->dtype() != dtype) {
            converted[i] = Tensor::empty(call.in[i]->shape(), dtype);
            copy_elements(*call.in[i], *converted[i]);
        }
        lines.add(*converted[i]);
    }
    lines.run(loop);
}

}  // namespace

void elementwise_kernel(Call& call) { run_loop(call, *call.out[0], loop_type(call)); }
void elementwise_cuda(Call& call) { run_fused(call, *call.out[0], loop_type(call)); }

bool write_elementwise(const Op& op, std::span<const T> inputs, Tensor& out) {
    Call call{op, inputs, no_params};
    if (!op.loops) return false;
    elementwise_rule(call);
    if (!(call.made[0].shape == out.shape()) || call.made[0].dtype != out.dtype()) return false;
    for (const T& input : inputs) {
        const bool number = input->dims() == 0 && input->device().is_cpu();
        if (!number && !(input->device() == out.device())) return false;
        // An input that overlaps the output in another layout would be read after it was written.
        const bool same = input->storage() == out.storage() &&
                          input->layout().offset == out.layout().offset &&
                          input->strides() == out.strides() && input->shape() == out.shape();
        if (!same && input->storage() == out.storage()) return false;
    }
    const T written(&out);
    if (Capture* const capture = Capture::here()) [[unlikely]]
        capture->add_write(op, inputs, no_params, out);
    const CapturePause pause;
    RecordedStep step(op.name, {inputs, {&written, 1}});
    step.compute([&] { run_loop(call, out, loop_type(call)); });
    if (is_recording() || StepBudget::here()) {
        for (const T& input : inputs) step.read(*input->storage());
        step.write(*out.storage());
        step.cost(cost_of(call));
    }
    return true;
}

// --- the table -------------------------------------------------------------------------------------------

namespace {

T truth(const T& condition, DType dtype) { return cast(condition, dtype); }

/// The gradient is zero wherever there is one.
void flat(Backward& c) {
    for (int i = 0; i < c.inputs(); ++i) c.give(i, [&] { return zeros(c.shape(i), c.dtype(i)); });
}

const Op& entry(const char* name, int arity, void (*vjp)(Backward&), uint32_t saves, double flops = 1,
                Precision autocast = Precision::inputs) {
    return enter({.name = name,
                  .family = Family::elementwise,
                  .arity = arity,
                  .vjp = vjp,
                  .saves = saves,
                  .autocast = autocast,
                  .flops_per_element = flops});
}

/// Entry of an operation with one input and this gradient, in terms of the gradient `g` of its output.
#define ONE_IN(precision, name, saves, flops, ...)         \
    const Op& name##_op = entry(                           \
        #name, 1,                                          \
        [](Backward& c) {                                  \
            const T g = c.grad();                          \
            c.give(0, [&]() -> T { return __VA_ARGS__; }); \
        },                                                 \
        saves, flops, Precision::precision)
#define ONE(...) ONE_IN(inputs, __VA_ARGS__)
/// The same for one that mixed precision keeps in float32.
#define SINGLE(...) ONE_IN(single, __VA_ARGS__)
#define X conjugate(c.input())
#define OUT conjugate(c.output())
T backward_of(const char* name, const T& g, const T& x) { return run(op_named(name), no_params, g, x); }
T backward_of(const char* name, const T& g, const T& x, const T& constant) {
    return run(op_named(name), no_params, g, x, constant);
}
T mish_slope(const T& x) {
    const T t = tanh(logaddexp(x, like(x, 0)));
    return t + x * (1 - square(t)) * sigmoid(x);
}

#define FLAT(name, n) const Op& name##_op = entry(#name, n, flat, 0)
#define NONE(name, n) const Op& name##_op = entry(#name, n, nullptr, 0)

T unary(const char* name, const T& x) { return run(op_named(name), no_params, x); }
T polygamma(const T& n, const T& x) { return run(op_named("polygamma"), no_params, n, x); }
/// y / x, and the limit where x is zero.
T over(const T& y, const T& x, double limit) {
    const T zero = equal(x, like(x, 0));
    return where(zero, like(y, limit), y / where(zero, like(x, 1), x));
}
/// (cos(pi x) - sinc(x)) / x
T sinc_slope(const T& x) { return over(cos(x * M_PI) - unary("sinc", x), x, 0); }
T unknown(Backward& c, int i) {
    fail(Kind::runtime,
         "[backward of 'zeta'] its derivative in the first argument is not known here; detach() it");
    return zeros(c.shape(i), c.dtype(i));
}

ONE(negative, 0, 1, -g);
ONE(positive, 0, 1, g);
ONE(abs, in0, 1, g* sign(c.input()));
/// Of a complex number z / |z|, only the part of the gradient across its direction counts.
ONE(sign, in0 | out0, 1,
    is(c.dtype(), complexes)
        ? where(equal(c.input(), like(g, 0)), like(g, 0),
                (g - c.output() * cast(real(g * OUT), g->dtype())) / cast(abs(c.input()), g->dtype()))
        : zeros(c.shape(), c.dtype()));
SINGLE(square, in0, 1, g * X * 2);
SINGLE(reciprocal, out0, 1, -(g* square(OUT)));
ONE(sqrt, out0, 1, g / (OUT * 2));
SINGLE(rsqrt, out0, 2, g*(OUT* square(OUT)) * -0.5);
SINGLE(exp, out0, 10, g* OUT);
ONE(exp2, out0, 10, g * OUT * M_LN2);
SINGLE(expm1, out0, 10, g*(OUT + 1));
SINGLE(log, in0, 10, g / X);
SINGLE(log2, in0, 10, g / (X * M_LN2));
SINGLE(log10, in0, 10, g / (X * M_LN10));
SINGLE(log1p, in0, 10, g / (X + 1));
ONE(sin, in0, 10, g* cos(X));
ONE(cos, in0, 10, -(g* sin(X)));
SINGLE(tan, out0, 10, g*(square(OUT) + 1));
SINGLE(asin, in0, 10, g / sqrt(1 - square(X)));
SINGLE(acos, in0, 10, -(g / sqrt(1 - square(X))));
ONE(atan, in0, 10, g / (square(X) + 1));
SINGLE(sinh, in0, 10, g* cosh(X));
SINGLE(cosh, in0, 10, g* sinh(X));
ONE(tanh, out0, 10, g * (1 - square(OUT)));
ONE(asinh, in0, 10, g / sqrt(square(X) + 1));
ONE(acosh, in0, 10, is(g->dtype(), complexes) ? g / (sqrt(X - 1) * sqrt(X + 1)) : g / sqrt(square(X) - 1));
ONE(atanh, in0, 10, g / (1 - square(X)));
ONE(sigmoid, out0, 10, g*(OUT * (1 - OUT)));
ONE(erf, in0, 15, g* exp(-square(c.input())) * M_2_SQRTPI);
ONE(erfc, in0, 15, g* exp(-square(c.input())) * -M_2_SQRTPI);
SINGLE(erfinv, out0, 40, g* exp(square(c.output())) / M_2_SQRTPI);
ONE(lgamma, in0, 30, g* digamma(c.input()));
ONE(digamma, in0, 30, g* polygamma(like(g, 1), c.input()));
ONE(i0, in0, 30, g* unary("i1", c.input()));
ONE(i0e, in0 | out0, 30, g*(unary("i1e", c.input()) - c.output() * sign(c.input())));
ONE(i1, in0 | out0, 30, g*(unary("i0", c.input()) - over(c.output(), c.input(), 0.5)));
ONE(i1e, in0 | out0, 30,
    g*(unary("i0e", c.input()) - c.output() * sign(c.input()) - over(c.output(), c.input(), 0.5)));
ONE(erfcx, in0 | out0, 30, g*(c.input() * c.output() * 2 - M_2_SQRTPI));
/// The density over the distribution.
ONE(log_ndtr, in0, 30, g*(M_2_SQRTPI* M_SQRT1_2) / unary("erfcx", c.input() * -M_SQRT1_2));
ONE(ndtri, out0, 40, g* exp(square(c.output()) * 0.5) * (2 / (M_2_SQRTPI * M_SQRT1_2)));
ONE(sinc, in0, 15, g* sinc_slope(X));
NONE(frexp_exponent, 1);
FLAT(floor, 1);
FLAT(ceil, 1);
FLAT(trunc, 1);
FLAT(round, 1);
ONE(relu, out0, 1, backward_of("relu_backward", g, c.output()));
ONE(gelu, in0, 20, backward_of("gelu_backward", g, c.input()));
ONE(gelu_tanh, in0, 20, backward_of("gelu_tanh_backward", g, c.input()));
ONE(silu, in0, 12, backward_of("silu_backward", g, c.input()));
ONE(mish, in0, 20, g* mish_slope(c.input()));
ONE(conj, 0, 1, conjugate(g));
ONE(real, 0, 1, g);
ONE(imag, 0, 1, complex(like(g, 0), g));
/// 0 at 0, where no direction is better than another.
T angle_slope(const T& g, const T& z) {
    const T squared = square(abs(z));
    const T scale = where(equal(squared, like(squared, 0)), like(squared, 0), g / squared);
    return complex(-imag(z), real(z)) * scale;
}
ONE(angle, in0, 10, is(c.dtype(), complexes) ? angle_slope(g, c.input()) : zeros(c.shape(), c.dtype()));
NONE(isnan, 1);
NONE(isinf, 1);
NONE(isfinite, 1);
NONE(signbit, 1);
NONE(logical_not, 1);
NONE(bitwise_not, 1);

/// Entry of an operation with two inputs and a gradient for each.
#define TWO_IN(precision, name, saves, flops, first, ...)  \
    const Op& name##_op = entry(                           \
        #name, 2,                                          \
        [](Backward& c) {                                  \
            const T g = c.grad();                          \
            c.give(0, [&]() -> T { return first; });       \
            c.give(1, [&]() -> T { return __VA_ARGS__; }); \
        },                                                 \
        saves, flops, Precision::precision)
#define TWO(...) TWO_IN(inputs, __VA_ARGS__)
#define A c.input(0)
#define B c.input(1)

/// 1 where `a` is the result, a half where both are equal, 1 where one is NaN.
T share(const T& a, const T& b, DType dtype, bool larger) {
    const T loses = truth(larger ? less(a, b) : greater(a, b), dtype);
    return 1.0 - (loses + truth(equal(a, b), dtype) * 0.5);
}

TWO(add, 0, 1, g, g);
TWO(subtract, 0, 1, g, -g);
TWO(multiply, in0 | in1, 1, g* conjugate(B), g* conjugate(A));
TWO(divide, in1 | out0, 1, g / conjugate(B), -(g* conjugate(c.output() / B)));
FLAT(floor_divide, 2);
TWO(remainder, in0 | in1, 4, g, -(g* run(op_named("floor_divide"), no_params, A, B)));
TWO(fmod, in0 | in1, 4, g, -(g* run(op_named("trunc"), no_params, A / B)));

T pow_base(const T& x, const T& y) {
    const T power = y * pow(x, y - 1.0);
    return where(equal(y, like(y, 0)), like(power, 0), power);
}
/// The slope of 0 ** y is 0 for y >= 0, also at y = 0, where the power itself is not continuous.
T pow_exponent(const T& x, const T& y, const T& out) {
    const T slope = out * log(x);
    const T flat = logical_or(equal(out, like(out, 0)), equal(y, like(y, 0)));
    return where(logical_and(equal(x, like(x, 0)), flat), like(slope, 0), slope);
}
TWO_IN(single, pow, in0 | in1 | out0, 15, g* conjugate(pow_base(cast(A, g->dtype()), cast(B, g->dtype()))),
       g* conjugate(pow_exponent(cast(A, g->dtype()), cast(B, g->dtype()), c.output())));
TWO(maximum, in0 | in1, 1, g* share(A, B, g->dtype(), true), g* share(A, B, g->dtype(), false));
TWO(minimum, in0 | in1, 1, g* share(A, B, g->dtype(), false), g* share(A, B, g->dtype(), true));
/// Whether fmax or fmin returns the first operand: it is not worse, or the second one is NaN.
T is_first(const T& a, const T& b, bool larger) {
    return logical_or(larger ? greater_equal(a, b) : less_equal(a, b), isnan(b));
}
TWO(fmax, in0 | in1, 1, where(is_first(A, B, true), g, like(g, 0)),
    where(is_first(A, B, true), like(g, 0), g));
TWO(fmin, in0 | in1, 1, where(is_first(A, B, false), g, like(g, 0)),
    where(is_first(A, B, false), like(g, 0), g));
/// y / (a² + b²), and 0 at the origin, where the angle has no slope.
T over_squares(const T& y, const T& a, const T& b) {
    const T squares = square(a) + square(b);
    return where(equal(squares, like(squares, 0)), like(y, 0), y / squares);
}
TWO(atan2, in0 | in1, 15, over_squares(g* B, A, B), over_squares(-(g* A), A, B));
TWO(hypot, in0 | in1 | out0, 5, g* A / c.output(), g* B / c.output());
TWO(copysign, in0 | out0, 1, where(equal(A, like(A, 0)), like(g, 0), g*(c.output() / A)),
    zeros(c.shape(1), c.dtype(1)));
TWO(nextafter, in0 | in1, 1, where(equal(A, B), like(g, 0), g), zeros(c.shape(1), c.dtype(1)));
TWO(logaddexp, in0 | in1, 20, g* sigmoid(A - B), g* sigmoid(B - A));
T xlogy_slope(const T& g, const T& x, const T& y) {
    const T undefined = logical_and(equal(x, like(x, 0)), less_equal(y, like(y, 0)));
    return where(undefined, like(g, 0), run(op_named("xlogy"), no_params, g, y));
}
TWO(xlogy, in0 | in1, 10, xlogy_slope(g, A, B), g* A / B);
TWO(polygamma, in0 | in1, 60, zeros(c.shape(0), c.dtype(0)), g* polygamma(A + 1, B));
TWO(zeta, in0 | in1, 60, unknown(c, 0), -(g * A * run(op_named("zeta"), no_params, A + 1, B)));
NONE(gcd, 2);
NONE(lcm, 2);
FLAT(heaviside, 2);

// Activations: a second or third input, as the slope, is a constant but for leaky_relu's. Those of a backward
// entry are the gradient, then the input or output that the slope follows from.
const Op& elu_op = entry(
    "elu", 2,
    // From the input: the output plus alpha cancels where it is close to -alpha.
    [](Backward& c) { c.give(0, [&] { return backward_of("elu_backward", c.grad(), A, B); }); }, in0 | in1,
    10);
const Op& elu_backward_op = entry(
    "elu_backward", 3,
    [](Backward& c) {
        const T u = c.grad(), x = c.input(1), alpha = c.input(2);
        c.give(0, [&] { return backward_of("elu_backward", u, x, alpha); });
        c.give(1, [&] {
            const T curve = backward_of("elu_backward", u * c.input(0), x, alpha);
            return where(greater(x, like(x, 0)), like(x, 0), curve);
        });
    },
    in0 | in1 | in2, 12);
TWO(leaky_relu, in0 | in1, 1, backward_of("leaky_relu_backward", g, A, B),
    where(greater(A, like(A, 0)), like(A, 0), g* A));
const Op& leaky_relu_backward_op = entry(
    "leaky_relu_backward", 3,
    [](Backward& c) {
        const T u = c.grad(), x = c.input(1);
        c.give(0, [&] { return backward_of("leaky_relu_backward", u, x, c.input(2)); });
        c.give(2, [&] { return where(greater(x, like(x, 0)), like(x, 0), u * c.input(0)); });
    },
    in0 | in1 | in2, 1);
const Op& relu_backward_op = entry(
    "relu_backward", 2,
    [](Backward& c) { c.give(0, [&] { return backward_of("relu_backward", c.grad(), B); }); }, in1);
T normal_density(const T& x) { return exp(square(x) * -0.5) * (M_SQRT1_2 * M_2_SQRTPI / 2); }
TWO(gelu_backward, in0 | in1, 25, backward_of("gelu_backward", g, B),
    g * A * normal_density(B) * (2 - square(B)));
/// Second derivative of x (1 + tanh(f)) / 2 with f = k (x + c x³).
T gelu_tanh_curve(const T& x) {
    constexpr double k = 0.79788456080286535588, c = 0.044715;
    const T slope = (square(x) * (3 * c) + 1) * k, t = tanh(x * (square(x) * c + 1) * k);
    return (1 - square(t)) * (slope * (1 - x * t * slope) + square(x) * (3 * k * c));
}
TWO(gelu_tanh_backward, in0 | in1, 25, backward_of("gelu_tanh_backward", g, B), g * A * gelu_tanh_curve(B));
T silu_curve(const T& x) {
    const T p = sigmoid(x);
    return p * (1 - p) * (x * (1 - p * 2) + 2);
}
TWO(silu_backward, in0 | in1, 15, backward_of("silu_backward", g, B), g * A * silu_curve(B));
/// Inputs: x, beta, threshold.
const Op& softplus_op = entry(
    "softplus", 3,
    [](Backward& c) {
        c.give(0, [&] {
            const T scaled = A * B, g = c.grad();
            return where(greater(scaled, c.input(2)), g, g * sigmoid(scaled));
        });
    },
    in0 | in1 | in2, 25, Precision::single);

NONE(equal, 2);
NONE(not_equal, 2);
NONE(less, 2);
NONE(less_equal, 2);
NONE(greater, 2);
NONE(greater_equal, 2);
NONE(logical_and, 2);
NONE(logical_or, 2);
NONE(logical_xor, 2);
NONE(bitwise_and, 2);
NONE(bitwise_or, 2);
NONE(bitwise_xor, 2);
NONE(bitwise_left_shift, 2);
NONE(bitwise_right_shift, 2);
TWO(complex, 0, 0, real(g), imag(g));

const Op& clip_op = entry(
    "clip", 3,
    [](Backward& c) {
        const T g = c.grad();
        c.give(0, [&] { return backward_of("clip_backward", g, c.input(0), c.output()); });
        if (!c.wants(1) && !c.wants(2)) return;
        const T x = c.input(0), low = c.input(1), high = c.input(2), zero = like(g, 0);
        c.give(1, [&] { return where(logical_and(less(x, low), less(low, high)), g, zero); });
        // Where the bounds are crossed, the upper one is the result.
        c.give(2, [&] { return where(logical_or(greater(x, high), less(high, low)), g, zero); });
    },
    in0 | in1 | in2 | out0, 2);
/// The gradient where the input was within the limits: where the result is the input.
const Op& clip_backward_op = entry(
    "clip_backward", 3,
    [](Backward& c) {
        c.give(0, [&] { return backward_of("clip_backward", c.grad(), c.input(1), c.input(2)); });
    },
    in1 | in2, 1);
/// `clip` whose gradient is zero at the bounds themselves; PyTorch's relu6 and hardtanh have it, its clip
/// not.
const Op& hardtanh_op = entry(
    "hardtanh", 3,
    [](Backward& c) {
        c.give(0, [&] {
            const T above = backward_of("keep_above", c.grad(), c.input(0), c.input(1));
            return backward_of("keep_below", above, c.input(0), c.input(2));
        });
    },
    in0 | in1 | in2, 2);
const Op& keep_above_op = entry(
    "keep_above", 3,
    [](Backward& c) {
        c.give(0, [&] { return backward_of("keep_above", c.grad(), c.input(1), c.input(2)); });
    },
    in1 | in2, 1);
const Op& keep_below_op = entry(
    "keep_below", 3,
    [](Backward& c) {
        c.give(0, [&] { return backward_of("keep_below", c.grad(), c.input(1), c.input(2)); });
    },
    in1 | in2, 1);
T least_log(const T& x) { return maximum(x, like(x, -100)); }
TWO_IN(single, binary_cross_entropy, in0 | in1, 25, backward_of("binary_cross_entropy_backward", g, A, B),
       g*(least_log(log1p(-A)) - least_log(log(A))));
/// Inputs: gradient, probability, target.
const Op& binary_cross_entropy_backward_op = entry(
    "binary_cross_entropy_backward", 3,
    [](Backward& c) {
        const T u = c.grad(), g = c.input(0), x = c.input(1), target = c.input(2);
        const auto variance = [&] { return maximum((1 - x) * x, like(x, 1e-12)); };
        c.give(0, [&] { return backward_of("binary_cross_entropy_backward", u, x, target); });
        c.give(1, [&] { return u * g * (square(x) - x * target * 2 + target) / square(variance()); });
        c.give(2, [&] { return -(u * g) / variance(); });
    },
    in0 | in1 | in2, 5);
const Op& lerp_op = entry(
    "lerp", 3,
    [](Backward& c) {
        const T g = c.grad();
        c.give(0, [&] { return g * conjugate(1 - c.input(2)); });
        c.give(1, [&] { return g * conjugate(c.input(2)); });
        c.give(2, [&] { return g * conjugate(c.input(1) - c.input(0)); });
    },
    in0 | in1 | in2, 3);
const Op& addcmul_op = entry(
    "addcmul", 3,
    [](Backward& c) {
        const T g = c.grad();
        c.give(0, g);
        c.give(1, [&] { return g * conjugate(c.input(2)); });
        c.give(2, [&] { return g * conjugate(c.input(1)); });
    },
    in1 | in2, 2);

// --- where and conversion --------------------------------------------------------------------------------

void where_rule(Call& call) {
    if (call.input(0).dtype() != DType::bool_)
        fail(Kind::dtype, "[where] the condition has type ", name_of(call.input(0).dtype()),
             "; give a bool tensor, as x > 0 makes one");
    const Dims values = broadcast(call.input(1).shape(), call.input(2).shape(), "where");
    call.make(broadcast(call.input(0).shape(), values, "where"),
              promote(call.input(1).dtype(), call.input(2).dtype()));
}

void where_kernel(Call& call) {
    const DType dtype = call.out[0]->dtype();
    const T a = cast(call.in[1], dtype), b = cast(call.in[2], dtype);
    Lines lines(call.out[0]->shape());
    lines.add(*call.out[0]);
    lines.add(call.input(0));
    lines.add(*a);
    lines.add(*b);
    lines.run(where_loop(dtype));
}

const Op& where_op = enter({.name = "where",
                            .family = Family::elementwise,
                            .arity = 3,
                            .rule = where_rule,
                            .cpu = where_kernel,
                            .cuda = [](Call& call) { run_fused(call, *call.out[0], call.out[0]->dtype()); },
                            .vjp =
                                [](Backward& c) {
                                    const T g = c.grad();
                                    c.give(1, [&] { return where(c.input(0), g, like(g, 0)); });
                                    c.give(2, [&] { return where(c.input(0), like(g, 0), g); });
                                },
                            .saves = in0});

const Op& cast_op = enter({.name = "cast",
                           .family = Family::elementwise,
                           .arity = 1,
                           .rule = [](Call& call) { call.make(call.input().shape(), call.params.dtype); },
                           .cpu = [](Call& call) { copy_elements(call.input(), *call.out[0]); },
                           .cuda = [](Call& call) { copy_elements(call.input(), *call.out[0]); },
                           .vjp = [](Backward& c) { c.give(0, c.grad()); }});

}  // namespace

T cast(const T& x, DType dtype) {
    if (x->dtype() == dtype) return x;
    Params params;
    params.dtype = dtype;
    return run(cast_op, params, x);
}

T copy(const T& x) {
    Params params;
    params.dtype = x->dtype();
    return run(cast_op, params, x);
}

T contiguous(const T& x) { return x->contiguous() ? x : copy(x); }
T zeros(const Dims& shape, DType dtype) { return Tensor::full(shape, dtype, 0); }
T ones(const Dims& shape, DType dtype) { return Tensor::full(shape, dtype, 1); }

}  // namespace accelera::tensora
