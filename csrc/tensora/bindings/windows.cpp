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

}  // namespace

void bind_windows(nb::module_& module) { bind_convolution(module); }

}  // namespace accelera::tensora
