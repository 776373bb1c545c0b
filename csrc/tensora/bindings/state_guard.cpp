// Guards of captured functions: whether Python objects and tensors are what they were at the capture.
#include "tensora/bindings/convert.h"
#include "tensora/core/autograd.h"

namespace accelera::tensora {

namespace {

/// Value of an item of a container, or of an attribute; null if it is absent.
nb::object value_in(PyObject* owner, PyObject* key) {
    PyObject* value = nullptr;
    if (PyDict_Check(owner)) {
        value = PyDict_GetItemWithError(owner, key);
        Py_XINCREF(value);
    } else if (PyList_Check(owner)) {
        value = PyList_GetItem(owner, PyLong_AsSsize_t(key));
        Py_XINCREF(value);
    } else if (Py_TYPE(owner) == &PyDictProxy_Type) {
        value = PyObject_GetItem(owner, key);
    } else {
        value = PyObject_GetAttr(owner, key);
    }
    if (!value) PyErr_Clear();
    return nb::steal(value);
}

/// Position of the first item from `start` on that is another object than at the capture; -1: none.
int64_t first_changed(nb::list owners, nb::list keys, nb::list values, nb::handle absent, int64_t start) {
    const auto count = int64_t(nb::len(owners));
    for (int64_t i = start; i < count; ++i) {
        PyObject* const expected = PyList_GetItem(values.ptr(), i);
        const nb::object value = value_in(PyList_GetItem(owners.ptr(), i), PyList_GetItem(keys.ptr(), i));
        if ((value.is_valid() ? value.ptr() : absent.ptr()) != expected) return i;
    }
    return -1;
}

/// Position of the first container from `start` on that has another length than at the capture; -1: none.
int64_t first_resized(nb::list containers, nb::list lengths, int64_t start) {
    const auto count = int64_t(nb::len(containers));
    for (int64_t i = start; i < count; ++i) {
        const Py_ssize_t length = PyObject_Size(PyList_GetItem(containers.ptr(), i));
        if (length != PyLong_AsSsize_t(PyList_GetItem(lengths.ptr(), i))) {
            PyErr_Clear();
            return i;
        }
    }
    return -1;
}

/// Number of hooks, and of hooks that there have been.
std::pair<size_t, int64_t> hooks_of(const std::shared_ptr<Hooks>& hooks) {
    return hooks ? std::pair(hooks->all.size(), hooks->next) : std::pair<size_t, int64_t>(0, 0);
}

/// The properties of a tensor that a captured program depends on, other than its elements.
class TensorState {
  public:
    explicit TensorState(const T& tensor)
        : tensor_(tensor),
          storage_(tensor->storage()),
          layout_(tensor->layout()),
          dtype_(tensor->dtype()),
          gradient_(gradient_of(*tensor)) {}

    bool holds() const {
        const Layout& layout = tensor_->layout();
        return tensor_->storage() == storage_ && layout.offset == layout_.offset &&
               layout.shape == layout_.shape && layout.strides == layout_.strides &&
               tensor_->dtype() == dtype_ && gradient_of(*tensor_) == gradient_;
    }

  private:
    struct GradientState {
        bool required = false;
        const Node* node = nullptr;
        std::pair<size_t, int64_t> hooks, after;
        bool operator==(const GradientState&) const = default;
    };

    static GradientState gradient_of(const Tensor& tensor) {
        const Gradient* const gradient = tensor.gradient();
        if (!gradient) return {};
        return {gradient->required, gradient->node.get(), hooks_of(gradient->hooks),
                hooks_of(gradient->after)};
    }

    T tensor_;
    Ref<Storage> storage_;  // kept, so that no other one has its address
    Layout layout_;
    DType dtype_;
    GradientState gradient_;
};

/// The states of several tensors.
class TensorStates {
  public:
    explicit TensorStates(const std::vector<T>& tensors) {
        for (const T& tensor : tensors) states_.emplace_back(tensor);
    }
    int64_t first_changed() const {
        for (size_t i = 0; i < states_.size(); ++i)
            if (!states_[i].holds()) return int64_t(i);
        return -1;
    }

  private:
    std::vector<TensorState> states_;
};

}  // namespace

void bind_state_guard(nb::module_& module) {
    module.def("first_changed", first_changed,
               "Position of the first item that is another object than at the capture, or -1.");
    module.def("first_resized", first_resized,
               "Position of the first container that has another length than at the capture, or -1.");
    nb::class_<TensorStates>(module, "TensorStates", "Layouts, memory and gradient settings of tensors.")
        .def(nb::init<const std::vector<T>&>())
        .def("first_changed", &TensorStates::first_changed,
             "Position of the first tensor that has changed, or -1.");
}

}  // namespace accelera::tensora
