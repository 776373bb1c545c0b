// Automatic differentiation as Python sees it.
#include "tensora/bindings/convert.h"
#include "tensora/functions.h"

namespace accelera::tensora {

namespace {

/// A Python object that C++ may let go of on any thread.
std::shared_ptr<nb::object> shared(nb::object object) {
    return std::shared_ptr<nb::object>(new nb::object(std::move(object)), [](nb::object* held) {
        const nb::gil_scoped_acquire gil;
        delete held;
    });
}

/// Operation of the user's own: gradients come from a Python function.
class CustomNode final : public Node {
  public:
    CustomNode(std::string name, std::shared_ptr<nb::object> function, std::span<const T> inputs)
        : Node(nullptr, inputs), name_(std::move(name)), function_(std::move(function)) {}

    std::string name() const override { return name_; }

    SmallVector<T> backward(const SmallVector<T>& grads) override {
        const nb::gil_scoped_acquire gil;
        if (!function_)
            fail(Kind::runtime, "backward through '", name_,
                 "' a second time: give retain_graph=True to the first backward");
        nb::list given;
        for (size_t i = 0; i < grads.size(); ++i)
            given.append(grads[i] ? grads[i] : zeros(outputs[i].shape, outputs[i].dtype));
        nb::object result = (*function_)(*nb::tuple(given));
        if (!nb::isinstance<nb::tuple>(result)) result = nb::make_tuple(result);
        const nb::tuple all = nb::borrow<nb::tuple>(result);
        if (all.size() != edges.size())
            fail(Kind::runtime, "backward of '", name_, "' returned ", all.size(), " gradients for ",
                 edges.size(), " inputs");
        SmallVector<T> results(edges.size());
        for (size_t i = 0; i < edges.size(); ++i) {
            if (all[i].is_none() || !edges[i].wanted()) continue;
            const T grad = nb::cast<T>(all[i]);
            if (!(grad->shape() == edges[i].shape))
                fail(Kind::runtime, "backward of '", name_, "' returned a gradient of shape ",
                     grad->shape().words(), " for input ", i, ", whose shape is ", edges[i].shape.words());
            results[i] = cast(grad, edges[i].dtype);
        }
        return results;
    }
    void release() override { function_.reset(); }

  private:
    std::string name_;
    std::shared_ptr<nb::object> function_;
};

std::vector<T> attach(const std::string& name, nb::object function, const std::vector<T>& inputs,
                      const std::vector<T>& outputs) {
    bool tracked = false;
    for (const T& input : inputs) tracked = tracked || input->tracked() || bool(node_of(*input));
    std::vector<T> results;
    for (const T& output : outputs) results.push_back(output->detach());
    if (!tracked || !grad_enabled()) return results;
    const Ref<Node> node(new CustomNode(name, shared(std::move(function)), inputs));
    for (size_t i = 0; i < results.size(); ++i) {
        node->outputs.push_back({results[i]->shape(), results[i]->dtype()});
        if (!is(results[i]->dtype(), inexact)) continue;
        results[i]->make_gradient().node = node;
        results[i]->make_gradient().output = int(i);
    }
    return results;
}

/// (name of the operation, *inputs); an input whose elements were not kept is one without elements.
nb::object grad_fn(const T& x) {
    const Ref<Node> node = node_of(*x);
    if (!node) return nb::none();
    nb::list parts;
    parts.append(nb::str(node->name().c_str()));
    for (const Edge& edge : node->edges) {
        if (edge.leaf || edge.saved) {
            parts.append(edge.leaf ? edge.leaf : edge.saved);
            continue;
        }
        const T shell(new Tensor(Storage::borrow(nullptr, 0, false, nullptr),
                                 Layout{edge.shape, Dims::filled(edge.shape.size(), 0), 0}, edge.dtype));
        if (edge.node) {
            shell->make_gradient().node = edge.node;
            shell->make_gradient().output = edge.output;
        }
        parts.append(shell);
    }
    return nb::tuple(parts);
}

int64_t add_hook(const T& x, nb::object function) {
    if (!x->tracked() && !node_of(*x))
        fail(Kind::runtime, "register_hook: the tensor does not require gradients");
    Gradient& gradient = x->make_gradient();
    if (!gradient.hooks) gradient.hooks = std::make_shared<Hooks>();
    const auto held = shared(std::move(function));
    const int64_t number = gradient.hooks->next++;
    gradient.hooks->all.push_back({number, [held](const T& grad) -> T {
                                       const nb::gil_scoped_acquire gil;
                                       const nb::object result = (*held)(grad);
                                       return result.is_none() ? T() : nb::cast<T>(result);
                                   }});
    watch(*x, false);
    return number;
}

void remove_hook(const T& x, int64_t number) {
    if (!x->gradient() || !x->gradient()->hooks) return;
    std::erase_if(x->gradient()->hooks->all, [&](const auto& hook) { return hook.first == number; });
}

/// Lines of the program that run now, innermost last.
std::string place() {
    const nb::gil_scoped_acquire gil;
    const nb::object lines = nb::module_::import_("traceback").attr("format_stack")(nb::arg("limit") = 6);
    return nb::cast<std::string>(nb::str("").attr("join")(lines));
}

}  // namespace

void bind_autograd(nb::module_& module) {
    module.def("grad_enabled", grad_enabled);
    module.def("set_grad_enabled", set_grad_enabled);
    module.def("set_anomaly", [](bool on) { set_anomaly(on ? place : nullptr); });
    module.def("anomaly", anomaly);
    module.def("backward", [](const std::vector<T>& outputs, const std::vector<std::optional<T>>& grads,
                              const std::vector<T>& inputs, bool retain_graph, bool create_graph,
                              bool accumulate, bool allow_unused) {
        std::vector<T> given;
        for (const auto& grad : grads) given.push_back(grad.value_or(T()));
        return run_backward(outputs, given, inputs, {retain_graph, create_graph, accumulate, allow_unused});
    });
    module.def("attach", attach);
    module.def("grad_fn", grad_fn);
    module.def("add_hook", add_hook);
    module.def("remove_hook", remove_hook);
}

}  // namespace accelera::tensora
