// Operations of neural networks and steps of optimizers as functions of Python.
#include "tensora/bindings/convert.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

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

void bind_optimizers(nb::module_& module) {
    module.def("sgd_step", [](const std::vector<T>& params, const std::vector<T>& grads,
                              const std::vector<T>& buffers, const nb::dict& options) {
        SgdStep step{};
        step.lr = nb::cast<double>(options["lr"]);
        step.momentum = nb::cast<double>(options["momentum"]);
        step.dampening = nb::cast<double>(options["dampening"]);
        step.weight_decay = nb::cast<double>(options["weight_decay"]);
        step.nesterov = nb::cast<bool>(options["nesterov"]);
        step.maximize = nb::cast<bool>(options["maximize"]);
        step.first = nb::cast<bool>(options["first"]);
        sgd_step(params, grads, buffers, step);
    });
    module.def("adam_step",
               [](const std::vector<T>& params, const std::vector<T>& grads, const std::vector<T>& means,
                  const std::vector<T>& squares, const std::vector<T>& largest, const nb::dict& options) {
                   AdamStep step{};
                   step.lr = nb::cast<double>(options["lr"]);
                   step.beta1 = nb::cast<double>(options["beta1"]);
                   step.beta2 = nb::cast<double>(options["beta2"]);
                   step.eps = nb::cast<double>(options["eps"]);
                   step.weight_decay = nb::cast<double>(options["weight_decay"]);
                   step.correction1 = nb::cast<double>(options["correction1"]);
                   step.correction2 = nb::cast<double>(options["correction2"]);
                   step.decoupled = nb::cast<bool>(options["decoupled"]);
                   step.maximize = nb::cast<bool>(options["maximize"]);
                   adam_step(params, grads, {means, squares, largest}, step);
               });
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

std::pair<T, T> first_two(const std::array<T, 3>& all) { return {all[0], all[1]}; }

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
