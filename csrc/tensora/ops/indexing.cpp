// Entries of the operations that read and write at given places, and indexing built on them.
#include <algorithm>
#include <cstring>

#include "tensora/base/threads.h"
#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/jit/capture.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

/// Read an element once: another library or thread may write to memory that it shares at any time.
int64_t read_once(const int64_t* place) { return __atomic_load_n(place, __ATOMIC_RELAXED); }

/// The place counted from the front; raises if it is out of range.
int64_t wrapped(int64_t place, int64_t extent, const char* op) {
    if (place < -extent || place >= extent)
        fail(Kind::index, "[", op, "] index ", place, " of an axis with ", extent, " elements");
    return place < 0 ? place + extent : place;
}

void wrap_places(int64_t n, const int64_t* from, int64_t extent, int64_t* to, const char* op) {
    for (int64_t i = 0; i < n; ++i) to[i] = wrapped(read_once(from + i), extent, op);
}

/// Places of an index that were valid when the operation was called. Kernels check each again, since the
/// memory of the index may have changed after the forward pass.
class CheckedPlaces {
  public:
    CheckedPlaces(const T& index, int64_t extent, const char* op)
        : index_(contiguous(index)), places_(index_->data<int64_t>()), extent_(extent), op_(op) {}

    int64_t size() const { return index_->size(); }
    int64_t operator[](int64_t i) const {
        const int64_t place = read_once(places_ + i);
        if (uint64_t(place) >= uint64_t(extent_)) [[unlikely]]
            refuse(place);
        return place;
    }

  private:
    [[noreturn]] void refuse(int64_t place) const {
        fail(Kind::index, "[", op_, "] index ", place, " of an axis with ", extent_,
             " elements. The memory of the index was changed after the index was checked; pass a copy");
    }

    T index_;
    const int64_t* places_;
    int64_t extent_;
    const char* op_;
};

const Op& wrap_index_op = enter({.name = "wrap_index",
                                 .family = Family::indexing,
                                 .arity = 1,
                                 .types = integers,
                                 .rule = [](Call& call) { call.make(call.input().shape(), DType::i64); },
                                 .cpu =
                                     [](Call& call) {
                                         const T index = contiguous(cast(call.in[0], DType::i64));
                                         wrap_places(index->size(), index->data<int64_t>(), call.params.a[0],
                                                     call.out[0]->data<int64_t>(), "index");
                                     }});

bool is_any_recorded(std::initializer_list<T> readers) {
    return any_tracked(std::span(readers.begin(), readers.size()));
}

/// A step of its own and no operation of the table: a budget that ran it again would read memory that may
/// have changed.
template <typename Fill>
T filled_copy(const T& index, Fill fill) {
    const DeviceScope scope(index->device());
    const RecordedStep step("index", {{&index, 1}});
    const T result = Tensor::empty(index->shape(), DType::i64);
    step.compute([&] { fill(*result); });
    step.read(*index->storage());
    step.write(*result->storage());
    return result;
}

T wrapped_copy(const T& index, int64_t extent, const char* op) {
    return filled_copy(index, [&](Tensor& result) {
        wrap_places(index->size(), index->data<int64_t>(), extent, result.data<int64_t>(), op);
    });
}

}  // namespace

T recorded_index(const T& index, std::initializer_list<T> readers) {
    if (index->dtype() != DType::i64 || !is_any_recorded(readers)) return index;
    const GradMode off(false);
    if (Capture::here()) return copy(index);
    return filled_copy(index, [&](Tensor& result) { copy_elements(*index, result); });
}

T checked_index(const T& given, int64_t extent, const char* op, std::initializer_list<T> readers) {
    const bool keeps = is_any_recorded(readers);
    if (!is(given->dtype(), integers))
        fail(Kind::index, "[", op, "] an index of type ", name_of(given->dtype()),
             "; give integers or a bool mask");
    const GradMode off(false);
    if (!given->device().is_cpu())
        return to_device(checked_index(to_device(given, cpu), extent, op, {}), given->device());
    if (Capture::here()) {
        Params params;
        params.a = {extent};
        return run(wrap_index_op, params, given);
    }
    const T index = contiguous(cast(given, DType::i64));
    if (index->storage()->lacks_contents()) return index;
    if (keeps) return wrapped_copy(index, extent, op);
    const int64_t* const values = index->data<int64_t>();
    bool negative = false;
    for (int64_t i = 0; i < index->size(); ++i) {
        const int64_t place = read_once(values + i);
        negative = negative || wrapped(place, extent, op) != place;
    }
    return negative ? wrapped_copy(index, extent, op) : index;
}

namespace {

Params on_axis(int axis, const Dims& shape = {}) {
    Params params;
    params.mode = axis;
    params.a = shape;
    return params;
}

/// Extents before an axis, of it, and behind it.
struct Sides {
    int64_t outer = 1, extent = 1, inner = 1;
    Sides(const Dims& shape, int axis) : extent(shape[axis]) {
        for (int i = 0; i < axis; ++i) outer *= shape[i];
        for (int i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
    }
};

/// Call `copy(nbytes)`. Sizes of single elements are constants, for which `memcpy` is one instruction.
template <typename Copy>
void with_size(int64_t nbytes, Copy copy) {
    switch (nbytes) {
        case 1:
            return copy(std::integral_constant<int64_t, 1>());
        case 2:
            return copy(std::integral_constant<int64_t, 2>());
        case 4:
            return copy(std::integral_constant<int64_t, 4>());
        case 8:
            return copy(std::integral_constant<int64_t, 8>());
        default:
            return copy(nbytes);
    }
}

// --- take: whole slices along one axis -------------------------------------------------------------------

void take_rule(Call& call) {
    Dims shape;
    const Dims& from = call.input(0).shape();
    for (int i = 0; i < call.params.mode; ++i) shape.push_back(from[i]);
    for (int64_t extent : call.input(1).shape()) shape.push_back(extent);
    for (int i = call.params.mode + 1; i < from.size(); ++i) shape.push_back(from[i]);
    call.make(shape, call.input(0).dtype());
}

void take_kernel(Call& call) {
    const T x = contiguous(call.in[0]);
    const Sides sides(x->shape(), call.params.mode);
    const CheckedPlaces at(call.in[1], sides.extent, "take");
    const int64_t n = at.size();
    const int64_t row = sides.inner * size_of(x->dtype());
    const char* const from = x->bytes();
    char* const out = call.out[0]->bytes();
    with_size(row, [&](auto size) {
        parallel_for(sides.outer * n, std::max<int64_t>(1, 65536 / std::max<int64_t>(row, 1)),
                     [&](int64_t begin, int64_t end) {
                         int64_t outer = begin / n, k = begin % n;
                         for (int64_t i = begin; i < end; ++i) {
                             std::memcpy(out + i * size, from + (outer * sides.extent + at[k]) * size,
                                         size_t(size));
                             if (++k < n) continue;
                             k = 0;
                             ++outer;
                         }
                     });
    });
}

/// mode: axis. The index is int64 and in range.
const Op& take_op = enter({.name = "take",
                           .family = Family::indexing,
                           .arity = 2,
                           .rule = take_rule,
                           .cpu = take_kernel,
                           .cuda = cuda::take,
                           .vjp =
                               [](Backward& c) {
                                   c.give(0, [&] {
                                       return run(op_named("take_add"), on_axis(c.params().mode, c.shape()),
                                                  c.grad(), c.input(1));
                                   });
                               },
                           .saves = in1,
                           .flops_per_element = 0});

/// dest[(i, at[k], j)] op= values[(i, k, j)], slices in order, so that the result does not depend on threads.
template <typename Write>
void write_slices(const Sides& sides, const CheckedPlaces& at, Write write) {
    const int64_t n = at.size();
    parallel_for(sides.outer, std::max<int64_t>(1, grain / std::max<int64_t>(1, n * sides.inner)),
                 [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i)
                         for (int64_t k = 0; k < n; ++k)
                             write((i * sides.extent + at[k]) * sides.inner, (i * n + k) * sides.inner);
                 });
}

template <typename E>
void add_elements(E* to, const E* from, int64_t n) {
    using C = Computed<E>;
    for (int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<E, Bool>)
            to[i] = to[i] || from[i];
        else
            to[i] = E(C(to[i]) + C(from[i]));
    }
}

void take_add_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const T values = contiguous(call.in[0]);
    const Sides sides(out.shape(), call.params.mode);
    fill_zeros(out);
    visit(out.dtype(), [&]<typename E>(Tag<E>) {
        write_slices(sides, {call.in[1], sides.extent, "take_add"}, [&](int64_t to, int64_t from) {
            add_elements(out.data<E>() + to, values->data<E>() + from, sides.inner);
        });
    });
}

/// Zeros of shape `a` to which the values are added where `take` would take them from.
const Op& take_add_op =
    enter({.name = "take_add",
           .family = Family::indexing,
           .arity = 2,
           .rule = [](Call& call) { call.make(call.params.a, call.input(0).dtype()); },
           .cpu = take_add_kernel,
           .cuda = cuda::take_add,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] { return run(take_op, on_axis(c.params().mode), c.grad(), c.input(1)); });
               },
           .saves = in1});

/// 1 for each index that no later one repeats, shaped to multiply what `take` returns; null when none
/// repeats.
T last_of_equals(const T& index, int64_t extent, int behind, DType dtype) {
    if (Capture::here()) Capture::here()->refuse_read(*index, "the gradient of an assignment");
    Dims shape = index->shape();
    for (int i = 0; i < behind; ++i) shape.push_back(1);
    if (index->storage()->lacks_contents()) return cast(reshape(equal(index, index), shape), dtype);
    const CheckedPlaces at(index, extent, "put");
    std::vector<int64_t> last(size_t(extent), -1);
    bool repeats = false;
    for (int64_t i = 0; i < index->size(); ++i) {
        int64_t& place = last[size_t(at[i])];
        repeats = repeats || place >= 0;
        place = i;
    }
    if (!repeats) return {};
    const DeviceScope scope(cpu);
    const T mask = Tensor::empty({index->size()}, DType::bool_);
    for (int64_t i = 0; i < index->size(); ++i) mask->data<bool>()[i] = last[size_t(at[i])] == i;
    return cast(reshape(mask, shape), dtype);
}

/// The first input with the values of the third at the places of the second; of several the last.
const Op& put_op =
    enter({.name = "put",
           .family = Family::indexing,
           .arity = 3,
           .rule = [](Call& call) { call.make(call.input(0).shape(), call.input(0).dtype()); },
           .cpu =
               [](Call& call) {
                   Tensor& out = *call.out[0];
                   copy_elements(call.input(0), out);
                   const T values = contiguous(cast(call.in[2], out.dtype()));
                   const Sides sides(out.shape(), call.params.mode);
                   const int64_t each = size_of(out.dtype());
                   char* const bytes = out.bytes();
                   const char* const given = values->bytes();
                   with_size(sides.inner * each, [&](auto size) {
                       write_slices(sides, {call.in[1], sides.extent, "put"}, [&](int64_t to, int64_t from) {
                           std::memcpy(bytes + to * each, given + from * each, size_t(size));
                       });
                   });
               },
           .cuda = cuda::put,
           .vjp =
               [](Backward& c) {
                   const T g = c.grad();
                   const Params params = on_axis(c.params().mode);
                   c.give(0, [&] {
                       return run(op_named("put"), params, g, c.input(1), zeros(c.shape(2), g->dtype()));
                   });
                   c.give(2, [&]() -> T {
                       const T taken = run(take_op, params, g, c.input(1));
                       const int axis = c.params().mode;
                       const T index = contiguous(to_device(c.input(1), cpu));
                       const T written =
                           last_of_equals(index, c.shape()[axis], c.shape().size() - axis - 1, g->dtype());
                       return written ? taken * to_device(written, g->device()) : taken;
                   });
               },
           .saves = in1,
           .flops_per_element = 0});

// --- take_along: one element for each index --------------------------------------------------------------

/// Call `each(place in the indexed tensor, place in the index)`, both in elements of contiguous tensors.
template <typename Each>
void walk_along(const char* op, const Dims& shape, const T& index, int axis, Each each) {
    const Dims& index_shape = index->shape();
    const CheckedPlaces at(index, shape[axis], op);
    const Dims strides = strides_of(shape);
    for (int64_t i = 0; i < index->size(); ++i) {
        int64_t rest = i, place = 0;
        for (int k = index_shape.size() - 1; k >= 0; --k) {
            const int64_t digit = rest % index_shape[k];
            rest /= index_shape[k];
            place += (k == axis ? at[i] : digit) * strides[k];
        }
        each(place, i);
    }
}

void along_rule(const char* op, const Dims& shape, const Dims& index, int axis) {
    bool fits = shape.size() == index.size();
    for (int i = 0; i < shape.size() && fits; ++i) fits = i == axis || index[i] <= shape[i];
    require_shape(fits, "[", op, "] an index of shape ", index.words(), " for a tensor of shape ",
                  shape.words(), "; extents but that of axis ", axis, " must not be larger");
}

void take_along_kernel(Call& call) {
    const T x = contiguous(call.in[0]);
    visit(x->dtype(), [&]<typename E>(Tag<E>) {
        const E* const from = x->data<E>();
        E* const out = call.out[0]->data<E>();
        walk_along("take_along_axis", x->shape(), call.in[1], call.params.mode,
                   [&](int64_t place, int64_t i) { out[i] = from[place]; });
    });
}

/// mode: axis. The index is int64 and in range.
const Op& take_along_op = enter(
    {.name = "take_along",
     .family = Family::indexing,
     .arity = 2,
     .rule =
         [](Call& call) {
             along_rule("take_along_axis", call.input(0).shape(), call.input(1).shape(), call.params.mode);
             call.make(call.input(1).shape(), call.input(0).dtype());
         },
     .cpu = take_along_kernel,
     .cuda = cuda::take_along,
     .vjp =
         [](Backward& c) {
             c.give(0, [&] {
                 return scatter_add(zeros(c.shape(), c.dtype()), c.input(1), c.grad(), c.params().mode);
             });
         },
     .saves = in1,
     .flops_per_element = 0});

const Op& scatter_add_op =
    enter({.name = "scatter_add",
           .family = Family::indexing,
           .arity = 3,
           .rule =
               [](Call& call) {
                   along_rule("scatter_add", call.input(0).shape(), call.input(1).shape(), call.params.mode);
                   require_shape(call.input(1).shape() == call.input(2).shape(),
                                 "[scatter_add] an index of shape ", call.input(1).shape().words(),
                                 " and values of shape ", call.input(2).shape().words());
                   call.make(call.input(0).shape(), call.input(0).dtype());
               },
           .cpu =
               [](Call& call) {
                   Tensor& out = *call.out[0];
                   copy_elements(call.input(0), out);
                   const T values = contiguous(cast(call.in[2], out.dtype()));
                   visit(out.dtype(), [&]<typename E>(Tag<E>) {
                       walk_along("scatter_add", out.shape(), call.in[1], call.params.mode,
                                  [&](int64_t place, int64_t i) {
                                      add_elements(out.data<E>() + place, values->data<E>() + i, 1);
                                  });
                   });
               },
           .cuda = cuda::scatter_add,
           .vjp =
               [](Backward& c) {
                   c.give(0, c.grad());
                   c.give(2, [&] {
                       return run(op_named("take_along"), on_axis(c.params().mode), c.grad(), c.input(1));
                   });
               },
           .saves = in1,
           .autocast = Precision::widest});

// --- scatter_reduce: products and extremes -----------------------------------------------------------------

template <typename E>
E combined(Scattered kind, E a, E b) {
    if (kind == Scattered::prod) return E(a * b);
    if constexpr (is_complex<E>)
        return a;  // the rule does not let them come here
    else
        return a != a ? a : b != b ? b : (kind == Scattered::max ? a < b : b < a) ? b : a;
}

Params scattering(Scattered kind, int axis) {
    Params params;
    params.mode = axis;
    params.a = {int64_t(kind)};
    return params;
}

void scatter_reduce_kernel(Call& call) {
    Tensor& out = *call.out[0];
    copy_elements(call.input(0), out);
    const T values = contiguous(cast(call.in[2], out.dtype()));
    const auto kind = Scattered(call.params.a[0]);
    visit(out.dtype(), [&]<typename E>(Tag<E>) {
        using C = Computed<E>;
        walk_along("scatter_reduce", out.shape(), call.in[1], call.params.mode,
                   [&](int64_t place, int64_t i) {
                       E& to = out.data<E>()[place];
                       to = E(combined(kind, C(to), C(values->data<E>()[i])));
                   });
    });
}

/// Elements that equal the result share its gradient.
void scattered_extreme_vjp(Backward& c, int axis) {
    const T index = c.input(1), out = c.output();
    const DType dtype = c.grad()->dtype();
    const T own = cast(equal(c.input(0), out), dtype);
    const T given = cast(equal(c.input(2), take_along(out, index, axis)), dtype);
    const T share = c.grad() / scatter_add(own, index, given, axis);
    c.give(0, [&] { return own * share; });
    c.give(2, [&] { return given * take_along(share, index, axis); });
}

/// The product of all others: divided by the element, or where it is the only zero of its place, with 1
/// there.
void scattered_product_vjp(Backward& c, int axis) {
    const T x = c.input(0), index = c.input(1), values = c.input(2), g = c.grad(), one = like(x, 1);
    c.give(0, [&] {
        const T safe = where(equal(x, like(x, 0)), one, x);
        return g * scatter_reduce(safe, index, values, axis, Scattered::prod) / safe;
    });
    c.give(2, [&] {
        const T zero = equal(values, like(x, 0));
        const T zeros_there = scatter_add(zeros(x->shape(), x->dtype()), index, cast(zero, x->dtype()), axis);
        const T only = logical_and(zero, equal(take_along(zeros_there, index, axis), one));
        const T without = scatter_reduce(x, index, where(only, one, values), axis, Scattered::prod);
        return where(only, take_along(g * without, index, axis),
                     take_along(g * c.output(), index, axis) / where(zero, one, values));
    });
}

/// mode: axis, a: the kind.
const Op& scatter_reduce_op = enter(
    {.name = "scatter_reduce",
     .family = Family::indexing,
     .arity = 3,
     .types = reals | halves | integers,
     .rule =
         [](Call& call) {
             along_rule("scatter_reduce", call.input(0).shape(), call.input(1).shape(), call.params.mode);
             require_shape(call.input(1).shape() == call.input(2).shape(),
                           "[scatter_reduce] an index of shape ", call.input(1).shape().words(),
                           " and values of shape ", call.input(2).shape().words());
             call.make(call.input(0).shape(), call.input(0).dtype());
         },
     .cpu = scatter_reduce_kernel,
     .cuda = cuda::scatter_reduce,
     .vjp =
         [](Backward& c) {
             const bool product = Scattered(c.params().a[0]) == Scattered::prod;
             (product ? scattered_product_vjp : scattered_extreme_vjp)(c, c.params().mode);
         },
     .saves = in0 | in1 | in2 | out0});

}  // namespace

T scatter_reduce(const T& x, const T& index, const T& values, int axis, Scattered kind) {
    const int at = axis_of(axis, x->dims(), "scatter_reduce");
    return run(scatter_reduce_op, scattering(kind, at), x,
               checked_index(index, x->shape()[at], "scatter_reduce", {x, values}), values);
}

T take(const T& x, const T& index, int axis) {
    const int at = axis_of(axis, x->dims(), "take");
    return run(take_op, on_axis(at), x, checked_index(index, x->shape()[at], "take", {x}));
}

T take_add(const T& values, const T& index, const Dims& shape, int axis) {
    const int at = axis_of(axis, shape.size(), "take_add");
    return run(take_add_op, on_axis(at, shape), values,
               checked_index(index, shape[at], "take_add", {values}));
}

T put(const T& x, const T& index, const T& values, int axis) {
    const int at = axis_of(axis, x->dims(), "put");
    return run(put_op, on_axis(at), x, checked_index(index, x->shape()[at], "put", {x, values}), values);
}

T take_along(const T& x, const T& index, int axis) {
    const int at = axis_of(axis, x->dims(), "take_along_axis");
    return run(take_along_op, on_axis(at), x, checked_index(index, x->shape()[at], "take_along_axis", {x}));
}

T scatter_add(const T& x, const T& index, const T& values, int axis) {
    const int at = axis_of(axis, x->dims(), "scatter_add");
    return run(scatter_add_op, on_axis(at), x,
               checked_index(index, x->shape()[at], "scatter_add", {x, values}), values);
}

std::vector<T> nonzero(const T& x) {
    if (Capture::here()) Capture::here()->refuse_read(*x, "a number of elements that depends on them");
    const DeviceScope scope(cpu);
    const T mask = contiguous(to_device(cast(x->detach(), DType::bool_), cpu));
    const Bool* const hit = mask->data<Bool>();
    const int64_t n = std::count_if(hit, hit + mask->size(), [](Bool each) { return bool(each); });
    std::vector<T> result;
    for (int i = 0; i < x->dims(); ++i) result.push_back(Tensor::empty({n}, DType::i64));
    int64_t k = 0;
    for (int64_t i = 0; i < mask->size() && k < n; ++i) {
        if (!hit[i]) continue;
        int64_t rest = i;
        for (int axis = x->dims() - 1; axis >= 0; --axis) {
            result[axis]->data<int64_t>()[k] = rest % x->shape()[axis];
            rest /= x->shape()[axis];
        }
        ++k;
    }
    require(k == n, "[nonzero] ", n, " elements were not zero, then ", k,
            ". Another library writes to the memory of the tensor; pass a copy");
    for (T& places : result) places = to_device(places, x->device());
    return result;
}

// --- x[...] ----------------------------------------------------------------------------------------------

namespace {

/// An index with tensors in it, as one `take` along one axis: of `view` (ranges applied, indexed axes
/// joined).
struct Gathering {
    T view;
    T index;  ///< int64, of the shape that the index tensors broadcast to
    int axis = 0;
};

/// The view without the tensors: their axes stay whole. `places` are these axes in the view.
T without_tensors(const T& x, const std::vector<Subscript>& subscripts, Dims& places) {
    Dims start, step, size, shape;
    for (const Subscript& each : subscripts) {
        if (each.kind == Subscript::Kind::new_axis) {
            shape.push_back(1);
            continue;
        }
        const int axis = start.size();
        const bool whole = each.kind == Subscript::Kind::tensor;
        start.push_back(whole ? 0 : each.start);
        step.push_back(whole || each.kind == Subscript::Kind::number ? 1 : each.step);
        size.push_back(whole ? x->shape()[axis] : each.kind == Subscript::Kind::number ? 1 : each.size);
        if (whole) places.push_back(shape.size());
        if (each.kind != Subscript::Kind::number) shape.push_back(size.back());
    }
    return reshape(slice(x, start, step, size), shape);
}

/// Whether nothing stands between the tensors, and the numbers that stand for tensors beside them.
bool stand_together(const std::vector<Subscript>& subscripts) {
    const auto is_index = [](const Subscript& each) {
        return each.kind == Subscript::Kind::tensor || each.kind == Subscript::Kind::number;
    };
    const auto first = std::find_if(subscripts.begin(), subscripts.end(), is_index);
    const auto last = std::find_if(subscripts.rbegin(), subscripts.rend(), is_index).base();
    return std::all_of(first, last, is_index);
}

Gathering gathering(const T& x, const std::vector<Subscript>& subscripts) {
    Gathering result;
    Dims places, common;
    std::vector<T> indices;
    result.view = without_tensors(x, subscripts, places);
    for (const Subscript& each : subscripts)
        if (each.kind == Subscript::Kind::tensor) {
            indices.push_back(each.tensor);
            common = broadcast(common, each.tensor->shape(), "index");
        }
    const bool adjacent = stand_together(subscripts);
    if (!adjacent) {
        // As NumPy: the indexed axes come first.
        Dims order = places;
        for (int i = 0; i < result.view->dims(); ++i)
            if (!places.contains(i)) order.push_back(i);
        result.view = permute(result.view, order);
    }
    result.axis = adjacent ? int(places[0]) : 0;
    int64_t joined = 1;
    for (size_t i = 0; i < indices.size(); ++i) {
        const int64_t extent = result.view->shape()[result.axis + int(i)];
        result.index =
            i ? result.index * Tensor::scalar(DType::i64, double(extent)) + indices[i] : indices[0];
        joined *= extent;
    }
    result.index = contiguous(expand(result.index, common));
    if (indices.size() > 1) {
        Dims shape = result.view->shape();
        for (size_t i = 1; i < indices.size(); ++i) shape.erase(result.axis);
        shape[result.axis] = joined;
        result.view = reshape(result.view, shape);
    }
    return result;
}

bool has_tensor(const std::vector<Subscript>& subscripts) {
    return std::any_of(subscripts.begin(), subscripts.end(),
                       [](const Subscript& each) { return each.kind == Subscript::Kind::tensor; });
}

}  // namespace

T subscripted(const T& x, const std::vector<Subscript>& subscripts) {
    if (!has_tensor(subscripts)) {
        Dims places;
        return without_tensors(x, subscripts, places);
    }
    const Gathering found = gathering(x, subscripts);
    return run(take_op, on_axis(found.axis), found.view, found.index);
}

void assign(const T& x, const std::vector<Subscript>& subscripts, const T& value) {
    if (!has_tensor(subscripts)) {
        Dims places;
        write_in_place(without_tensors(x, subscripts, places), value, "assignment");
        return;
    }
    const Gathering found = gathering(x, subscripts);
    Dims shape;
    for (int i = 0; i < found.axis; ++i) shape.push_back(found.view->shape()[i]);
    for (int64_t extent : found.index->shape()) shape.push_back(extent);
    for (int i = found.axis + 1; i < found.view->dims(); ++i) shape.push_back(found.view->shape()[i]);
    const T values = expand(cast(value, x->dtype()), shape);
    const T written = run(put_op, on_axis(found.axis), found.view, found.index, values);
    // Where the joined axes made a copy, its elements go back to their places.
    if (found.view->storage() == x->storage()) return write_in_place(found.view, written, "assignment");
    Dims places;
    const T view = without_tensors(x, subscripts, places);
    bool adjacent = found.axis == places[0];
    for (int i = 1; i < places.size(); ++i) adjacent = adjacent && places[i] == places[i - 1] + 1;
    if (adjacent) return write_in_place(view, reshape(written, view->shape()), "assignment");
    Dims order = places;
    for (int i = 0; i < view->dims(); ++i)
        if (!places.contains(i)) order.push_back(i);
    const T moved = permute(view, order);
    write_in_place(moved, reshape(written, moved->shape()), "assignment");
}

// --- in place --------------------------------------------------------------------------------------------

namespace {

void check_type(DType from, DType to, const char* op) {
    const auto rank = [](DType dtype) {
        return is(dtype, complexes) ? 3 : is(dtype, floats) ? 2 : is(dtype, integers) ? 1 : 0;
    };
    if (rank(from) > rank(to))
        fail(Kind::dtype, "[", op, "] a result of type ", name_of(from), " does not fit elements of type ",
             name_of(to), "; write to a new tensor");
}

}  // namespace

void apply_in_place(const Op& op, std::span<const T> inputs, const T& target) {
    check_writable(*target, op.name);
    const AutocastPause as_given;
    bool tracked = false;
    for (const T& input : inputs)
        tracked = tracked || input->tracked() || (input->base() && input->base()->tracked());
    if (!(grad_enabled() && tracked) && write_elementwise(op, inputs, *target)) {
        target->storage()->bump();
        return;
    }
    // What the gradient reads and this overwrites is kept as a copy.
    std::vector<T> kept(inputs.begin(), inputs.end());
    for (size_t i = 0; i < kept.size(); ++i)
        if (tracked && (op.saves & (in0 << i)) && kept[i]->storage() == target->storage())
            kept[i] = copy(kept[i]);
    const T value = apply(op, kept, no_params);
    require_shape(value->shape() == target->shape(), "[", op.name, "] a result of shape ",
                  value->shape().words(), " cannot be written to a tensor of shape ",
                  target->shape().words());
    check_type(value->dtype(), target->dtype(), op.name);
    write_in_place(target, value, op.name);
}

void write_in_place(const T& target, const T& given, const char* op) {
    check_writable(*target, op);
    const T value = expand(to_device(cast(given, target->dtype()), target->device()), target->shape());
    const bool shared = value->storage() == target->storage();
    {
        const GradMode off(false);
        const T source = shared ? copy(value) : value;
        if (Capture* const capture = Capture::here()) [[unlikely]] {
            Params params;
            params.dtype = target->dtype();
            capture->add_write(op_named("cast"), {&source, 1}, params, *target);
        }
        const CapturePause pause;
        const RecordedStep step(op, {{&source, 1}, {&target, 1}});
        step.compute([&] { copy_elements(*source, *target); });
        step.read(*source->storage());
        step.write(*target->storage());
    }
    rebase(*target, value);
}

}  // namespace accelera::tensora
