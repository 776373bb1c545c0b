// Operations as functions of Python. Elementwise ones come straight from the op table.
#include <nanobind/stl/array.h>

#include "tensora/base/threads.h"
#include "tensora/bindings/checked_cast.h"
#include "tensora/bindings/convert.h"
#include "tensora/core/autocast.h"
#include "tensora/functions.h"
#include "tensora/kernels/blas.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

/// Tensors of an elementwise call: numbers take their type from the tensors among them.
std::vector<T> operands(nb::args args, const Op& op) {
    std::vector<T> result(args.size());
    std::optional<DType> dtype;
    for (size_t i = 0; i < args.size(); ++i)
        if (nb::try_cast<T>(args[i], result[i]) && result[i]) {
            const DType own = autocast_type(op.autocast, *result[i]);
            dtype = dtype ? promote(*dtype, own) : own;
        }
    if (!dtype)
        fail(Kind::type, "[", op.name, "] no tensor among the arguments; tensora.asarray() makes one");
    for (size_t i = 0; i < args.size(); ++i)
        if (!result[i]) result[i] = operand(args[i], *dtype);
    return result;
}

std::string type_words(nb::handle object) {
    return nb::cast<std::string>(nb::handle(object.type()).attr("__name__"));
}

void bind_elementwise(nb::module_& module) {
    for (const Op* op : table()) {
        if (!op->loops) continue;
        const std::string name = op->name;
        if (op->arity == 1) {
            module.def(name.c_str(), [op](const T& x) { return run(*op, no_params, x); });
            module.def(name.c_str(), [op](nb::handle x) -> T {
                fail(Kind::type, "[", op->name, "] a ", type_words(x),
                     " where a tensor is needed; tensora.asarray() makes one");
            });
        } else if (op->arity == 2)
            module.def(name.c_str(), [op](const T& x, const T& y) { return run(*op, no_params, x, y); });
        if (op->arity >= 2)
            module.def(name.c_str(),
                       [op](nb::args args) { return apply(*op, operands(args, *op), no_params); });
    }
    module.def("where", [](const T& condition, nb::handle a, nb::handle b) {
        T first, second;
        const bool has_first = nb::try_cast<T>(a, first) && first,
                   has_second = nb::try_cast<T>(b, second) && second;
        if (!has_first) first = operand(a, has_second ? second->dtype() : default_float());
        if (!has_second) second = operand(b, first->dtype());
        return where(condition, first, second);
    });
}

Dims all_axes(const T& x) {
    Dims axes;
    for (int i = 0; i < x->dims(); ++i) axes.push_back(i);
    return axes;
}

void bind_reductions(nb::module_& module) {
    for (const char* name : {"sum", "prod", "max", "min", "any", "all"}) {
        const Op* const op = &op_named(name);
        module.def(
            name,
            [op](const T& x, std::optional<Dims> axis, bool keepdims) {
                Params params;
                params.a = axis ? axes_of(*axis, x->dims(), op->name) : all_axes(x);
                params.flag = keepdims;
                return run(*op, params, x);
            },
            nb::arg("x"), nb::arg("axis") = nb::none(), nb::arg("keepdims") = false);
    }
    module.def("linear_recurrence", [](const T& a, const T& b, int axis) {
        Params params;
        params.mode = axis_of(axis, b->dims(), "linear_recurrence");
        return run(op_named("linear_recurrence"), params, a, b);
    });
    for (const char* name : {"cumsum", "cumprod", "logcumsumexp"}) {
        const Op* const op = &op_named(name);
        module.def(name, [op](const T& x, int axis) {
            Params params;
            params.mode = axis_of(axis, x->dims(), op->name);
            return run(*op, params, x);
        });
    }
}

void bind_movement(nb::module_& module) {
    module.def("reshape", reshape);
    module.def("expand", expand);
    module.def("permute", permute);
    module.def("flip", flip);
    module.def("concat", concat);
    module.def("copy", copy);
    module.def("contiguous", contiguous);
    module.def("to_device",
               [](const T& x, const std::string& device) { return to_device(x, device_named(device)); });
    module.def("cast", cast);
    module.def("as_strided", [](const T& x, const Dims& shape, const Dims& strides, int64_t offset) {
        require_inside("as_strided", {shape, strides, offset}, x->size());
        return as_strided(contiguous(x), {shape, strides, offset});
    });
    module.def("strided_scatter", [](const T& x, const Dims& shape, const Dims& strides, int64_t offset) {
        return strided_scatter(x, shape, {x->shape(), strides, offset});
    });
    module.def("unslice", unslice);
    module.def("shares_memory", [](const T& a, const T& b) { return a->storage() == b->storage(); });
    module.def("can_view", [](const T& x, const Dims& shape) {
        return bool(reshaped_layout(*x, complete_shape(*x, shape, "reshape")));
    });
}

void bind_creation(nb::module_& module) {
    module.def(
        "empty",
        [](const Dims& shape, DType dtype, const std::string& device) {
            const DeviceScope scope(device_named(device));
            require_fit(shape, dtype, DeviceScope::current());
            return Tensor::empty(shape, dtype);
        },
        nb::arg("shape"), nb::arg("dtype"), nb::arg("device") = "cpu");
    module.def(
        "full",
        [](const Dims& shape, nb::handle value, DType dtype, const std::string& device) {
            require_fit(shape, dtype, device_named(device));
            return copy(expand(to_device(scalar_tensor(value, dtype), device_named(device)), shape));
        },
        nb::arg("shape"), nb::arg("value"), nb::arg("dtype"), nb::arg("device") = "cpu");
    module.def("asarray", tensor_from, nb::arg("source"), nb::arg("dtype") = nb::none());
    module.def("from_dlpack", from_dlpack, nb::arg("source"), nb::arg("copy") = nb::none());
    module.def("from_buffer", from_buffer);
    module.def("arange", [](int64_t n) {
        require_fit({n}, DType::i64, cpu);
        const T result = Tensor::empty({n}, DType::i64);
        if (result->storage()->lacks_contents()) return result;
        int64_t* const data = result->data<int64_t>();
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) data[i] = i;
        });
        return result;
    });
}

void bind_indexing(nb::module_& module) {
    module.def("matmul", matmul);
    module.def("hold_blas", hold_blas);
    module.def("release_blas", release_blas);
    module.def("load_blas", [](const std::string& path) { load_blas(path.c_str()); });
    module.def("take", take);
    module.def("take_along_axis", take_along);
    module.def("scatter_add", scatter_add);
    module.def("scatter_reduce", [](const T& x, const T& index, const T& values, int axis, int kind) {
        return scatter_reduce(x, index, values, axis, Scattered(kind));
    });
    module.def("take_add", take_add);
    module.def("put", put);
    module.def("nonzero", nonzero);
}

void bind_search(nb::module_& module) {
    module.def("argsort", argsort, nb::arg("x"), nb::arg("axis"), nb::arg("descending"),
               nb::arg("kept") = nb::none());
    module.def("argmax", argmax);
    module.def("argmin", argmin);
    module.def("running_extreme", running_extreme);
    module.def("searchsorted", searchsorted);
    module.def("unique", [](const T& x) {
        const Unique found = unique(x);
        return nb::make_tuple(found.values, found.indices, found.inverse, found.counts);
    });
}

std::pair<T, T> first_two(const std::array<T, 3>& all) { return {all[0], all[1]}; }

void bind_random(nb::module_& module) {
    module.def("philox", philox, "Philox4x32-10 of a counter of four words and a key of two.");
    module.def("random_uniform",
               [](uint64_t seed, uint64_t draw, const Dims& shape, DType dtype, double low, double high) {
                   return random_uniform({seed, draw}, shape, dtype, low, high);
               });
    module.def("random_normal",
               [](uint64_t seed, uint64_t draw, const Dims& shape, DType dtype, double mean,
                  double deviation) { return random_normal({seed, draw}, shape, dtype, mean, deviation); });
    module.def("random_integers",
               [](uint64_t seed, uint64_t draw, const Dims& shape, DType dtype, int64_t low,
                  uint64_t extent) { return random_integers({seed, draw}, shape, dtype, low, extent); });
    module.def("random_dropout", [](uint64_t seed, uint64_t draw, const T& x, double p) {
        return random_dropout({seed, draw}, x, p);
    });
    module.def("random_permutation",
               [](uint64_t seed, uint64_t draw, int64_t n) { return random_permutation({seed, draw}, n); });
}

void bind_linalg(nb::module_& module) {
    module.def("cholesky", cholesky);
    module.def("solve", solve);
    module.def("solve_triangular", solve_triangular, nb::arg("a"), nb::arg("b"), nb::arg("upper"));
    module.def("inv", inv);
    module.def("det", det);
    module.def("slogdet", [](const T& x) { return first_two(slogdet(x)); });
    module.def(
        "qr", [](const T& x, bool complete) { return first_two(qr(x, complete)); }, nb::arg("x"),
        nb::arg("complete"));
    module.def("svd", svd, nb::arg("x"), nb::arg("full"));
    module.def("svdvals", svdvals);
    module.def("eigh", [](const T& x) { return first_two(eigh(x)); });
    module.def("eigvalsh", eigvalsh);
    module.def("eig", [](const T& x) { return first_two(eig(x)); });
    module.def("lu_factor", lu_factor);
}

nb::dict description(const Op& op) {
    nb::dict result;
    result["name"] = op.name;
    result["family"] = name_of(op.family);
    result["inputs"] = op.arity;
    result["outputs"] = op.outputs;
    result["differentiable"] = op.vjp != nullptr;
    result["view"] = op.view != nullptr;
    result["cuda"] = op.cuda != nullptr;
    result["autocast"] = name_of(op.autocast);
    return result;
}

}  // namespace

void bind_ops(nb::module_& module) {
    bind_elementwise(module);
    bind_reductions(module);
    bind_movement(module);
    bind_creation(module);
    bind_indexing(module);
    bind_search(module);
    bind_linalg(module);
    bind_random(module);
    module.def(
        "ops",
        [] {
            nb::list result;
            for (const Op* op : table()) result.append(description(*op));
            return result;
        },
        "The op table: name, family and properties of each primitive operation.");
}

// --- networks -------------------------------------------------------------------------------------------

namespace {

T given(const std::optional<T>& tensor) { return tensor ? *tensor : T(); }

void bind_fused(nb::module_& module) {
    module.def("softmax", softmax, nb::arg("x"), nb::arg("axis"));
    module.def("log_softmax", log_softmax, nb::arg("x"), nb::arg("axis"));
    module.def("linear", [](const T& x, const T& weight, const std::optional<T>& bias) {
        return linear(x, weight, given(bias));
    });
    module.def("layer_norm", [](const T& x, const Dims& shape, const std::optional<T>& weight,
                                const std::optional<T>& bias, double eps, bool centered) {
        return layer_norm(x, shape, given(weight), given(bias), eps, centered);
    });
    module.def("channel_norm", [](const T& x, int64_t groups, const std::optional<T>& weight,
                                  const std::optional<T>& bias, double eps) {
        const auto all = channel_norm(x, groups, given(weight), given(bias), eps);
        return nb::make_tuple(all[0], all[1], all[2]);
    });
    module.def("cross_entropy", [](const T& x, const T& target, const std::optional<T>& weight,
                                   int64_t ignored, double smoothing) {
        const auto all = cross_entropy(x, target, given(weight), ignored, smoothing);
        return nb::make_tuple(all[0], all[2]);
    });
    // The entries that only gradients use, for the tests of the op table.
    for (const char* name : {"softmax_backward", "log_softmax_backward", "layer_norm_backward",
                             "channel_norm_backward", "cross_entropy_backward"}) {
        const Op* const op = &op_named(name);
        module.def(name,
                   [op](const std::vector<T>& inputs, const Dims& a, const Dims& b, double x, bool flag) {
                       Params params;
                       params.a = a;
                       params.b = b;
                       params.x = x;
                       params.flag = flag;
                       const auto all = apply_all(*op, inputs, params);
                       return std::vector<T>(all.begin(), all.begin() + op->outputs);
                   });
    }
}

/// Users may change the options of an optimizer between two steps.
double number_option(const nb::dict& options, const char* name) {
    return checked_cast<double>(options[name], std::string("[step] the optimizer's option ") + name + " is",
                                "a number in the range of float64");
}

bool flag_option(const nb::dict& options, const char* name) {
    const nb::object value = options[name];
    const int truth = PyObject_IsTrue(value.ptr());
    if (truth < 0) throw nb::python_error();
    return truth;
}

void bind_optimizers(nb::module_& module) {
    module.def("sgd_step", [](const std::vector<T>& params, const std::vector<T>& grads,
                              const std::vector<T>& buffers, const nb::dict& options) {
        SgdStep step{};
        step.lr = number_option(options, "lr");
        step.momentum = number_option(options, "momentum");
        step.dampening = number_option(options, "dampening");
        step.weight_decay = number_option(options, "weight_decay");
        step.nesterov = flag_option(options, "nesterov");
        step.maximize = flag_option(options, "maximize");
        step.first = flag_option(options, "first");
        sgd_step(params, grads, buffers, step);
    });
    module.def("adam_step",
               [](const std::vector<T>& params, const std::vector<T>& grads, const std::vector<T>& means,
                  const std::vector<T>& squares, const std::vector<T>& largest, const nb::dict& options) {
                   AdamStep step{};
                   step.lr = number_option(options, "lr");
                   step.beta1 = number_option(options, "beta1");
                   step.beta2 = number_option(options, "beta2");
                   step.eps = number_option(options, "eps");
                   step.weight_decay = number_option(options, "weight_decay");
                   step.correction1 = number_option(options, "correction1");
                   step.correction2 = number_option(options, "correction2");
                   step.decoupled = flag_option(options, "decoupled");
                   step.maximize = flag_option(options, "maximize");
                   adam_step(params, grads, {means, squares, largest}, step);
               });
    module.def("unscale", unscale);
}

void bind_convolution(nb::module_& module) {
    module.def(
        "conv",
        [](const T& x, const T& weight, std::optional<T> bias, const Dims& stride, const Dims& padding,
           const Dims& dilation, int64_t groups) {
            return conv(x, weight, bias.value_or(T()), {stride, padding, dilation}, groups);
        },
        nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("stride"), nb::arg("padding"),
        nb::arg("dilation"), nb::arg("groups"));
    module.def("conv_input", [](const T& y, const T& weight, const Dims& stride, const Dims& padding,
                                const Dims& dilation, int64_t groups, const Dims& extents) {
        return conv_input(y, weight, {stride, padding, dilation}, groups, extents);
    });
    module.def("conv_weight", [](const T& x, const T& y, const Dims& stride, const Dims& padding,
                                 const Dims& dilation, int64_t groups, const Dims& extents) {
        return conv_weight(x, y, {stride, padding, dilation}, groups, extents);
    });
}

void bind_pooling(nb::module_& module) {
    module.def("max_pool", [](const T& x, const Dims& kernel, const Dims& stride, const Dims& padding,
                              const Dims& dilation, bool ceil) {
        return first_two(max_pool(x, kernel, {stride, padding, dilation}, ceil));
    });
    module.def("avg_pool", [](const T& x, const Dims& kernel, const Dims& stride, const Dims& padding,
                              bool ceil, bool count_padding, double divisor) {
        return avg_pool(x, kernel, {stride, padding, Dims::filled(kernel.size(), 1)}, ceil, count_padding,
                        divisor);
    });
    module.def("adaptive_max_pool",
               [](const T& x, const Dims& outs) { return first_two(adaptive_max_pool(x, outs)); });
    module.def("adaptive_avg_pool", adaptive_avg_pool);
    module.def("unfold", [](const T& x, const Dims& kernel, const Dims& stride, const Dims& padding,
                            const Dims& dilation) { return unfold(x, kernel, {stride, padding, dilation}); });
    module.def("fold",
               [](const T& y, const Dims& outs, const Dims& kernel, const Dims& stride, const Dims& padding,
                  const Dims& dilation) { return fold(y, outs, kernel, {stride, padding, dilation}); });
}

void bind_attention(nb::module_& module) {
    module.def(
        "attention",
        [](const T& query, const T& key, const T& value, std::optional<T> mask, double scale, bool causal) {
            return first_two(attention(query, key, value, mask.value_or(T()), scale, causal));
        },
        nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("mask").none(), nb::arg("scale"),
        nb::arg("causal"));
    module.def(
        "attention_backward",
        [](const std::vector<T>& inputs, std::optional<T> mask, double scale, bool causal) {
            const auto all = attention_backward(inputs, mask.value_or(T()), scale, causal);
            return nb::make_tuple(all[0], all[1], all[2]);
        },
        nb::arg("inputs"), nb::arg("mask").none(), nb::arg("scale"), nb::arg("causal"));
}

}  // namespace

void bind_networks(nb::module_& module) {
    bind_fused(module);
    bind_optimizers(module);
    bind_convolution(module);
    bind_pooling(module);
    bind_attention(module);
}

}  // namespace accelera::tensora
