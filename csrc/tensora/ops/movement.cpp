// Entries of the operations that only move elements: views where there is one, copies otherwise.
#include <cstring>

#include "tensora/core/autograd.h"
#include "tensora/device/driver.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

Params with(const Dims& a, const Dims& b = {}, const Dims& c = {}) {
    Params params;
    params.a = a;
    params.b = b;
    params.c = c;
    return params;
}

const Op& view_entry(const char* name, Layout (*view)(const Call&), void (*vjp)(Backward&)) {
    return enter({.name = name, .family = Family::movement, .arity = 1, .view = view, .vjp = vjp});
}

/// a: the new shape, complete.
const Op& reshape_op = view_entry(
    "reshape", [](const Call& call) { return *reshaped_layout(call.input(), call.params.a); },
    [](Backward& c) { c.give(0, [&] { return reshape(c.grad(), c.shape()); }); });

/// a: the new shape.
const Op& expand_op = view_entry(
    "expand", [](const Call& call) { return broadcast_layout(call.input(), call.params.a, "expand"); },
    [](Backward& c) { c.give(0, c.grad()); });

/// a: which axis of the input each axis of the output is.
const Op& permute_op = view_entry(
    "permute",
    [](const Call& call) {
        const Tensor& x = call.input();
        Layout layout = x.layout();
        for (int i = 0; i < x.dims(); ++i) {
            layout.shape[i] = x.shape()[int(call.params.a[i])];
            layout.strides[i] = x.strides()[int(call.params.a[i])];
        }
        return layout;
    },
    [](Backward& c) {
        Dims back = c.params().a;
        for (int i = 0; i < back.size(); ++i) back[int(c.params().a[i])] = i;
        c.give(0, [&] { return permute(c.grad(), back); });
    });

/// a: first index, b: step, c: number of elements, on each axis.
const Op& slice_op = view_entry(
    "slice",
    [](const Call& call) {
        const Tensor& x = call.input();
        Layout layout = x.layout();
        for (int i = 0; i < x.dims(); ++i) {
            if (call.params.c[i] > 0) layout.offset += call.params.a[i] * x.strides()[i];
            layout.strides[i] = x.strides()[i] * call.params.b[i];
            layout.shape[i] = call.params.c[i];
        }
        return layout;
    },
    [](Backward& c) { c.give(0, [&] { return unslice(c.grad(), c.shape(), c.params().a, c.params().b); }); });

void unslice_kernel(Call& call) {
    Tensor& out = *call.out[0];
    fill_zeros(out);
    copy_elements(call.input(), *slice(call.out[0], call.params.a, call.params.b, call.input().shape()));
}

/// a: start, b: step, c: shape of the result.
const Op& unslice_op =
    enter({.name = "unslice",
           .family = Family::movement,
           .arity = 1,
           .rule = [](Call& call) { call.make(call.params.c, call.input().dtype()); },
           .cpu = unslice_kernel,
           .cuda = unslice_kernel,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] { return slice(c.grad(), c.params().a, c.params().b, c.shape()); });
               },
           .flops_per_element = 0});

/// a: axes.
const Op& flip_op = view_entry(
    "flip",
    [](const Call& call) {
        Layout layout = call.input().layout();
        for (int64_t axis : call.params.a) {
            const int i = int(axis);
            if (layout.shape[i] > 0) layout.offset += (layout.shape[i] - 1) * layout.strides[i];
            layout.strides[i] = -layout.strides[i];
        }
        return layout;
    },
    [](Backward& c) { c.give(0, [&] { return flip(c.grad(), c.params().a); }); });

/// a: shape, b: strides, c: offset, of a contiguous input.
const Op& as_strided_op = view_entry(
    "as_strided",
    [](const Call& call) {
        return Layout{call.params.a, call.params.b, call.input().layout().offset + call.params.c[0]};
    },
    [](Backward& c) {
        const Layout layout{c.params().a, c.params().b, c.params().c[0]};
        c.give(0, [&] { return strided_scatter(c.grad(), c.shape(), layout); });
    });

void strided_scatter_kernel(Call& call) {
    Tensor& out = *call.out[0];
    fill_zeros(out);
    const T view = out.alias({call.input().shape(), call.params.b, call.params.c[0]});
    copy_elements(call.input(), *view);
}

/// a: shape of the result, b: strides, c: offset; then the values are added at their places in zeros.
const Op& strided_scatter_op =
    enter({.name = "strided_scatter",
           .family = Family::movement,
           .arity = 1,
           .rule = [](Call& call) { call.make(call.params.a, call.input().dtype()); },
           .cpu = strided_scatter_kernel,
           .cuda = strided_scatter_kernel,
           .vjp =
               [](Backward& c) {
                   const Layout layout{c.shape(), c.params().b, c.params().c[0]};
                   c.give(0, [&] { return as_strided(contiguous(c.grad()), layout); });
               },
           .flops_per_element = 0});

void concat_kernel(Call& call) {
    int64_t at = 0;
    for (const T& part : call.in) {
        const int64_t size = part->shape()[call.params.mode];
        copy_elements(*part, *narrow(call.out[0], call.params.mode, at, size));
        at += size;
    }
}

/// mode: axis.
const Op& concat_op =
    enter({.name = "concat",
           .family = Family::movement,
           .arity = -1,
           .rule =
               [](Call& call) {
                   require(!call.in.empty(), "[concat] no tensors given");
                   const int axis = call.params.mode;
                   Dims shape = call.in[0]->shape();
                   DType dtype = call.in[0]->dtype();
                   for (size_t i = 1; i < call.in.size(); ++i) {
                       const Tensor& part = call.input(int(i));
                       dtype = promote(dtype, part.dtype());
                       bool fits = part.dims() == shape.size();
                       for (int k = 0; k < shape.size() && fits; ++k)
                           fits = k == axis || part.shape()[k] == shape[k];
                       require_shape(fits, "[concat] part ", i, " has shape ", part.shape().words(),
                                     ", part 0 ", call.in[0]->shape().words(),
                                     "; all extents but that of axis ", axis, " must be equal");
                       shape[axis] += part.shape()[axis];
                   }
                   call.make(shape, dtype);
               },
           .cpu = concat_kernel,
           .cuda = concat_kernel,
           .vjp =
               [](Backward& c) {
                   const T g = c.grad();
                   const int axis = c.params().mode;
                   int64_t at = 0;
                   for (int i = 0; i < c.inputs(); ++i) {
                       const int64_t size = c.shape(i)[axis];
                       c.give(i, [&] { return narrow(g, axis, at, size); });
                       at += size;
                   }
               },
           .flops_per_element = 0});

void to_device_kernel(Call& call) {
    const T from = contiguous(call.in[0]);
    const Tensor& to = *call.out[0];
    const Device source = from->device(), target = to.device();
    const int64_t nbytes = to.size() * size_of(to.dtype());
    if (target.is_cpu()) return cuda::copy_to_host(source.index, to.bytes(), from->device_bytes(), nbytes);
    const T on_cpu = to_device(from, cpu);
    cuda::copy_to_device(target.index, to.device_bytes(), on_cpu->bytes(), nbytes);
}

/// mode: index of the device.
const Op& to_device_op =
    enter({.name = "to_device",
           .family = Family::movement,
           .arity = 1,
           .rule = [](Call& call) { call.make(call.input().shape(), call.input().dtype()); },
           .cpu = to_device_kernel,
           .cuda = to_device_kernel,
           .device = [](const Call& call) { return Device{int8_t(call.params.mode)}; },
           .vjp = [](Backward& c) { c.give(0, c.grad()); },
           .flops_per_element = 0});

}  // namespace

T to_device(const T& x, Device device) {
    if (x->device() == device) return x;
    Params params;
    params.mode = device.index;
    return run(to_device_op, params, x);
}

T reshape(const T& x, const Dims& wanted) {
    const Dims shape = complete_shape(*x, wanted, "reshape");
    if (shape == x->shape()) return x;
    return run(reshape_op, with(shape), reshaped_layout(*x, shape) ? x : copy(x));
}

T expand(const T& x, const Dims& shape) { return shape == x->shape() ? x : run(expand_op, with(shape), x); }

T permute(const T& x, const Dims& order) {
    require_shape(order.size() == x->dims(), "[permute] ", order.size(), " axes in ", order.words(),
                  " for a tensor with ", x->dims());
    return run(permute_op, with(axes_of(order, x->dims(), "permute")), x);
}

T transpose(const T& x, int a, int b) {
    Dims order;
    for (int i = 0; i < x->dims(); ++i) order.push_back(i);
    std::swap(order[axis_of(a, x->dims(), "transpose")], order[axis_of(b, x->dims(), "transpose")]);
    return permute(x, order);
}

T mt(const T& x) { return transpose(x, -1, -2); }

T unsqueeze(const T& x, int axis) {
    Dims shape = x->shape();
    shape.insert(axis_of(axis, x->dims() + 1, "unsqueeze"), 1);
    return reshape(x, shape);
}

T squeeze(const T& x, int axis) {
    Dims shape = x->shape();
    const int at = axis_of(axis, x->dims(), "squeeze");
    require_shape(shape[at] == 1, "[squeeze] axis ", axis, " of ", shape.words(),
                  " has more than one element");
    shape.erase(at);
    return reshape(x, shape);
}

T slice(const T& x, const Dims& start, const Dims& step, const Dims& size) {
    return run(slice_op, with(start, step, size), x);
}

T narrow(const T& x, int axis, int64_t start, int64_t size) {
    Dims starts = Dims::filled(x->dims(), 0), sizes = x->shape();
    starts[axis] = start;
    sizes[axis] = size;
    return slice(x, starts, Dims::filled(x->dims(), 1), sizes);
}

T unslice(const T& x, const Dims& shape, const Dims& start, const Dims& step) {
    return run(unslice_op, with(start, step, shape), x);
}

T flip(const T& x, const Dims& axes) { return run(flip_op, with(axes_of(axes, x->dims(), "flip")), x); }

T concat(const std::vector<T>& parts, int axis) {
    require(!parts.empty(), "[concat] no tensors given");
    Params params;
    params.mode = axis_of(axis, parts[0]->dims(), "concat");
    return apply(concat_op, parts, params);
}

T as_strided(const T& x, const Layout& layout) {
    return run(as_strided_op, with(layout.shape, layout.strides, {layout.offset}), x);
}

T strided_scatter(const T& x, const Dims& shape, const Layout& layout) {
    return run(strided_scatter_op, with(shape, layout.strides, {layout.offset}), x);
}

}  // namespace accelera::tensora
