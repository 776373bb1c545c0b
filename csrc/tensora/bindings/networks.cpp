// Operations of neural networks and steps of optimizers as functions of Python.
#include "tensora/bindings/convert.h"
#include "tensora/functions.h"
#include "tensora/kernels/rows.h"

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

}  // namespace

void bind_networks(nb::module_& module) {
    bind_fused(module);
    bind_optimizers(module);
}

}  // namespace accelera::tensora
