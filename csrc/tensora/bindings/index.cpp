// Python's notation of indices, read into Subscripts.
#include "tensora/bindings/checked_cast.h"
#include "tensora/bindings/convert.h"
#include "tensora/functions.h"

namespace accelera::tensora {

namespace {

Subscript range(Py_ssize_t start, Py_ssize_t stop, Py_ssize_t step, int64_t extent) {
    const Py_ssize_t size = PySlice_AdjustIndices(extent, &start, &stop, step);
    return {Subscript::Kind::range, start, step, size, {}};
}

Subscript number(Py_ssize_t place, int axis, int64_t extent) {
    if (place < -extent || place >= extent)
        fail(Kind::index, "[tensora] index ", place, " of axis ", axis, ", which has ", extent, " elements");
    return {Subscript::Kind::number, place < 0 ? place + extent : place, 1, 1, {}};
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
    fail(Kind::index, "[tensora] ", printed(item.type()),
         " is no index; give integers, slices, None, ..., and integer or bool tensors");
}

/// One item of a key without Python objects: what these compute is called once, and cannot change the others.
struct Item {
    enum class Kind { number, slice, new_axis, ellipsis, tensor };
    Kind kind;
    Py_ssize_t start = 0, stop = 0, step = 1;  ///< of a number only `start`
    T tensor{};

    /// Number of axes of the indexed tensor that the item selects from.
    int axes() const {
        if (kind == Kind::new_axis || kind == Kind::ellipsis) return 0;
        return tensor && tensor->dtype() == DType::bool_ ? tensor->dims() : 1;
    }
};

Item number_item(nb::handle item) {
    const Py_ssize_t place = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
    if (place == -1 && PyErr_Occurred()) throw nb::python_error();
    return {Item::Kind::number, place, 0, 1, {}};
}

Item item_of(nb::handle item) {
    if (item.is_none()) return {Item::Kind::new_axis};
    if (item.ptr() == Py_Ellipsis) return {Item::Kind::ellipsis};
    if (PySlice_Check(item.ptr())) {
        Item range{Item::Kind::slice};
        if (PySlice_Unpack(item.ptr(), &range.start, &range.stop, &range.step) < 0) throw nb::python_error();
        return range;
    }
    const T tensor = as_tensor(item);
    if (!tensor) return number_item(item);
    if (tensor->dims() == 0 && is(tensor->dtype(), integers)) return number_item(scalar_to_python(*tensor));
    return {Item::Kind::tensor, 0, 0, 1, tensor};
}

std::vector<Item> items_of(nb::handle key) {
    std::vector<Item> items;
    if (PyTuple_Check(key.ptr()))
        for (nb::handle item : nb::borrow<nb::tuple>(key)) items.push_back(item_of(item));
    else
        items.push_back(item_of(key));
    return items;
}

class Reader {
  public:
    /// `value`: of an assignment.
    Reader(const T& x, const std::vector<Item>& items, const T& value) : x_(x), value_(value ? value : x) {
        int used = 0;
        for (const Item& item : items) used += item.axes();
        if (used > x->dims())
            fail(Kind::index, "[tensora] ", used, " indices for a tensor with ", x->dims(), " dimensions");
        bool filled = false;
        for (const Item& item : items) {
            if (item.kind == Item::Kind::ellipsis) {
                if (filled) fail(Kind::index, "[tensora] '...' stands twice in an index");
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
    void whole(int n) {
        for (int i = 0; i < n; ++i)
            subscripts.push_back({Subscript::Kind::range, 0, 1, x_->shape()[axis_++], {}});
    }

    void read(const Item& item) {
        if (item.kind == Item::Kind::new_axis) {
            subscripts.push_back({Subscript::Kind::new_axis, 0, 1, 1, {}});
        } else if (item.kind == Item::Kind::slice) {
            subscripts.push_back(range(item.start, item.stop, item.step, x_->shape()[axis_++]));
        } else if (item.kind == Item::Kind::number) {
            subscripts.push_back(number(item.start, axis_, x_->shape()[axis_]));
            ++axis_;
        } else if (item.tensor->dtype() == DType::bool_) {
            read_mask(item.tensor);
        } else {
            const T places = checked_index(item.tensor, x_->shape()[axis_], "index", {x_, value_});
            subscripts.push_back({Subscript::Kind::tensor, 0, 1, 0, to_device(places, x_->device())});
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
                fail(Kind::index, "[tensora] a mask of shape ", mask->shape().words(), " for axes ", axis_,
                     " to ", axis_ + mask->dims() - 1, " of a tensor of shape ", x_->shape().words());
        for (const T& places : nonzero(mask)) {
            subscripts.push_back({Subscript::Kind::tensor, 0, 1, 0, to_device(places, x_->device())});
            ++axis_;
        }
    }

    const T x_, value_;
    int axis_ = 0;

  public:
    bool has_scalar_mask = false;
    bool scalar_mask = true;
};

/// The subscripts, and the tensor with the axis that a 0-d mask adds, cut to no element where it is false.
std::pair<T, std::vector<Subscript>> read(const T& x, nb::handle key, const T& value = {}) {
    Reader reader(x, items_of(key), value);
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

namespace {

/// A value that is assigned to elements of `x`, as a tensor.
T assigned(const T& x, nb::handle value) {
    const DeviceScope scope(cpu);
    T source;
    if (nb::try_cast<T>(value, source) && source) return source;
    if (!is_number(value)) return to_device(tensor_from(value, std::nullopt), x->device());
    const DType dtype = scalar_dtype(value, x->dtype());
    if (is(dtype, inexact) && !is(x->dtype(), inexact))
        fail(Kind::dtype, "[tensora] a ", name_of(dtype), " cannot be assigned to elements of type ",
             name_of(x->dtype()));
    return scalar_tensor(value, x->dtype());
}

}  // namespace

void set_item(const T& x, nb::handle key, nb::handle value) {
    const T source = assigned(x, value);
    const auto [to, subscripts] = read(x, key, source);
    const DeviceScope scope(cpu);
    assign(to, subscripts, source);
}

}  // namespace accelera::tensora
