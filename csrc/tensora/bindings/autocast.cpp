// Blocks of mixed precision, and functions that are cast as a whole.
#include "tensora/core/autocast.h"

#include <span>

#include "tensora/bindings/convert.h"

namespace accelera::tensora {

namespace {

bool is_sequence(nb::handle object) {
    return PyList_CheckExact(object.ptr()) || PyTuple_CheckExact(object.ptr());
}

/// Tensors among arguments, in their order: also those in lists and tuples.
void collect(nb::handle object, std::vector<T>& found) {
    T tensor;
    if (nb::try_cast<T>(object, tensor) && tensor)
        found.push_back(tensor);
    else if (is_sequence(object))
        for (nb::handle each : object) collect(each, found);
}

/// The same arguments with the next tensors in place of theirs.
nb::object replaced(nb::handle object, std::span<const T>& next) {
    T tensor;
    if (nb::try_cast<T>(object, tensor) && tensor) {
        if (next.empty()) fail(Kind::runtime, "[autocast] a list among the arguments grew during the call");
        const T replacement = next.front();
        next = next.subspan(1);
        return nb::cast(replacement);
    }
    if (!is_sequence(object)) return nb::borrow(object);
    nb::list made;
    for (nb::handle each : object) made.append(replaced(each, next));
    return PyTuple_CheckExact(object.ptr()) ? nb::object(nb::tuple(made)) : nb::object(made);
}

Precision precision_named(const std::string& name) {
    for (const Precision each : {Precision::inputs, Precision::lower, Precision::single, Precision::widest})
        if (name == name_of(each)) return each;
    fail(Kind::value, "[autocast] precision '", name, "'; give 'inputs', 'lower', 'float32' or 'widest'");
}

/// Call a function with its tensors cast, and nothing cast within it.
nb::object call_in(const std::string& precision, nb::callable function, nb::tuple args, nb::dict kwargs) {
    const nb::object values = kwargs.values();
    std::vector<T> found;
    collect(args, found);
    collect(values, found);
    const std::vector<T> made = autocast_inputs(precision_named(precision), found);
    const AutocastPause as_given;
    std::span<const T> next(made);
    const nb::object cast_args = replaced(args, next);
    nb::dict cast_kwargs;
    for (const auto& [name, value] : kwargs) cast_kwargs[name] = replaced(value, next);
    return function(*cast_args, **cast_kwargs);
}

}  // namespace

void bind_autocast(nb::module_& module) {
    module.def("autocasting", [] { return autocasting; });
    module.def("autocast_of", [](bool on_cuda) {
        const Autocast found = autocast_of(on_cuda);
        return nb::make_tuple(found.enabled, found.lower);
    });
    module.def("open_autocast", [](bool on_cuda, bool enabled, DType lower, bool cache) {
        open_autocast(on_cuda, {enabled, lower}, cache);
    });
    module.def("close_autocast", close_autocast);
    module.def("call_in", call_in);
}

}  // namespace accelera::tensora
