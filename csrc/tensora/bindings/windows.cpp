// Convolution, pooling and attention as functions of Python.
#include "tensora/bindings/convert.h"
#include "tensora/functions.h"

namespace accelera::tensora {

namespace {

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

void bind_windows(nb::module_& module) {
    bind_convolution(module);
    bind_pooling(module);
    bind_attention(module);
}

}  // namespace accelera::tensora
