// Python's notation of indices, read into Subscripts.
#include "tensora/bindings/convert.h"
#include "tensora/functions.h"

namespace accelera::tensora {

namespace {

Subscript range(PyObject* slice, int64_t extent) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0) throw nb::python_error();
    const Py_ssize_t size = PySlice_AdjustIndices(extent, &start, &stop, step);
    return {Subscript::Kind::range, start, step, size, {}};
}

Subscript number(nb::handle item, int axis, int64_t extent) {
    const Py_ssize_t given = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
    if (given == -1 && PyErr_Occurred()) throw nb::python_error();
    if (given < -extent || given >= extent)
        fail(Kind::index, "tensora: index ", given, " of axis ", axis, ", which has ", extent, " elements");
    return {Subscript::Kind::number, given < 0 ? given + extent : given, 1, 1, {}};
}

/// A tensor among the subscripts, or null where the item is none: lists and arrays count as tensors.
T as_tensor(nb::handle item) {
    T tensor;
    if (nb::try_cast<T>(item, tensor) && tensor) return tensor;
    PyObject* const p = item.ptr();
    if (PyBool_Check(p)) return scalar_tensor(item, DType::bool_);
    if (PyList_Check(p)) {
        const T made = tensor_from(item, std::nullopt);
        return made->size() == 0 ? cast(made, DType::i64) : made;
    }
    if (PyLong_Check(p) || PySlice_Check(p) || p == Py_None || p == Py_Ellipsis) return {};
    if (PyObject_HasAttrString(p, "__dlpack__")) return tensor_from(item, std::nullopt);
    if (PyIndex_Check(p)) return {};
    fail(Kind::index, "tensora: ", nb::cast<std::string>(nb::repr(nb::handle(item.type()))),
         " is no index; give integers, slices, None, ..., and integer or bool tensors");
}

class Reader {
  public:
    Reader(const T& x, const std::vector<nb::object>& items) : x_(x) {
        int used = 0;
        bool open = false;
        for (const nb::object& item : items) {
            open = open || item.ptr() == Py_Ellipsis;
            used += axes_of_item(item);
        }
        if (used > x->dims())
            fail(Kind::index, "tensora: ", used, " indices for a tensor with ", x->dims(), " dimensions");
        bool filled = false;
        for (const nb::object& item : items) {
            if (item.ptr() == Py_Ellipsis) {
                if (filled) fail(Kind::index, "tensora: '...' stands twice in an index");
                whole(x->dims() - used);
                filled = true;
            } else {
                read(item);
            }
        }
        whole(x->dims() - axis_);
    }
    std::vector<Subscript> subscripts;

  private:
    static int axes_of_item(const nb::object& item) {
        if (item.is_none() || item.ptr() == Py_Ellipsis) return 0;
        const T tensor = as_tensor(item);
        return tensor && tensor->dtype() == DType::bool_ ? tensor->dims() : 1;
    }

    void whole(int n) {
        for (int i = 0; i < n; ++i)
            subscripts.push_back({Subscript::Kind::range, 0, 1, x_->shape()[axis_++], {}});
    }

    void read(const nb::object& item) {
        if (item.is_none()) {
            subscripts.push_back({Subscript::Kind::new_axis, 0, 1, 1, {}});
        } else if (PySlice_Check(item.ptr())) {
            subscripts.push_back(range(item.ptr(), x_->shape()[axis_++]));
        } else if (const T tensor = as_tensor(item);
                   !tensor || (tensor->dims() == 0 && is(tensor->dtype(), integers))) {
            subscripts.push_back(
                number(tensor ? scalar_to_python(*tensor) : nb::object(item), axis_, x_->shape()[axis_]));
            ++axis_;
        } else if (tensor->dtype() == DType::bool_) {
            read_mask(tensor);
        } else {
            subscripts.push_back(
                {Subscript::Kind::tensor, 0, 1, 0,
                 to_device(checked_index(tensor, x_->shape()[axis_], "index"), x_->device())});
            ++axis_;
        }
    }

    void read_mask(const T& mask) {
        if (mask->dims() == 0) {
            // As NumPy: a new axis, with one element or none.
            subscripts.push_back({Subscript::Kind::new_axis, 0, 1, 1, {}});
            has_scalar_mask = true;
            scalar_mask = scalar_mask && *to_device(mask, cpu)->data<Bool>();
            return;
        }
        for (int i = 0; i < mask->dims(); ++i)
            // An empty mask fits anything, says the array API.
            if (mask->shape()[i] != x_->shape()[axis_ + i] && mask->shape()[i] != 0)
                fail(Kind::index, "tensora: a mask of shape ", mask->shape().words(), " for axes ", axis_,
                     " to ", axis_ + mask->dims() - 1, " of a tensor of shape ", x_->shape().words());
        for (const T& places : nonzero(mask)) {
            subscripts.push_back({Subscript::Kind::tensor, 0, 1, 0, to_device(places, x_->device())});
            ++axis_;
        }
    }

    const T& x_;
    int axis_ = 0;

  public:
    bool has_scalar_mask = false;
    bool scalar_mask = true;
};

std::vector<nb::object> items_of(nb::handle key) {
    std::vector<nb::object> items;
    if (PyTuple_Check(key.ptr()))
        for (nb::handle item : nb::borrow<nb::tuple>(key)) items.push_back(nb::borrow(item));
    else
        items.push_back(nb::borrow(key));
    return items;
}

/// The subscripts, and the tensor with the axis that a 0-d mask adds, cut to no element where it is false.
std::pair<T, std::vector<Subscript>> read(const T& x, nb::handle key) {
    Reader reader(x, items_of(key));
    if (!reader.has_scalar_mask) return {x, std::move(reader.subscripts)};
    const T viewed = subscripted(x, reader.subscripts);
    int axis = 0;
    for (const Subscript& each : reader.subscripts) {
        if (each.kind == Subscript::Kind::new_axis) break;
        axis += each.kind != Subscript::Kind::number;
    }
    const T cut = narrow(viewed, axis, 0, reader.scalar_mask ? 1 : 0);
    std::vector<Subscript> all;
    for (int64_t extent : cut->shape()) all.push_back({Subscript::Kind::range, 0, 1, extent, {}});
    return {cut, std::move(all)};
}

}  // namespace

T get_item(const T& x, nb::handle key) {
    const auto [from, subscripts] = read(x, key);
    return subscripted(from, subscripts);
}

void set_item(const T& x, nb::handle key, nb::handle value) {
    const auto [to, subscripts] = read(x, key);
    const DeviceScope scope(cpu);
    T source;
    if (!nb::try_cast<T>(value, source) || !source) {
        if (is_number(value)) {
            const DType dtype = scalar_dtype(value, x->dtype());
            if (is(dtype, inexact) && !is(x->dtype(), inexact))
                fail(Kind::type, "tensora: a ", name_of(dtype), " cannot be assigned to elements of type ",
                     name_of(x->dtype()));
            source = scalar_tensor(value, x->dtype());
        } else {
            source = to_device(tensor_from(value, std::nullopt), x->device());
        }
    }
    assign(to, subscripts, source);
}

}  // namespace accelera::tensora
