// Entries of pooling in one to three dimensions, and of windows as columns.
#include <algorithm>
#include <limits>
#include <vector>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/ops/images.h"

namespace accelera::tensora {

namespace {

// --- where windows lie -----------------------------------------------------------------------------------

/// One window along one axis: `first`, `first` + `step`, ... below `last`, all of them inside of the image.
struct Span {
    int64_t first, last, step;
    int64_t extent;  ///< with padding
};

/// params of all pools: a: extents of the kernel; b: strides; c: padding, dilations, extents of the result
/// and of the image; mode: 1 where each window has an equal share of the image instead.
struct Geometry {
    int64_t in[3], out[3];
    std::vector<Span> spans[3];

    explicit Geometry(const Params& params) {
        const int n = params.a.size();
        for (int i = 0; i < 3; ++i) {
            const int at = i - (3 - n);
            in[i] = at < 0 ? 1 : params.c[3 * n + at];
            out[i] = at < 0 ? 1 : params.c[2 * n + at];
            for (int64_t o = 0; o < out[i]; ++o)
                spans[i].push_back(at < 0        ? Span{0, 1, 1, 1}
                                   : params.mode ? share(o, out[i], in[i])
                                                 : window(params, at, o, in[i]));
        }
    }
    int64_t in_size() const { return in[0] * in[1] * in[2]; }
    int64_t out_size() const { return out[0] * out[1] * out[2]; }

  private:
    static Span share(int64_t o, int64_t outs, int64_t extent) {
        const int64_t first = o * extent / outs, last = ((o + 1) * extent + outs - 1) / outs;
        return {first, last, 1, last - first};
    }
    static Span window(const Params& params, int i, int64_t o, int64_t extent) {
        const int n = params.a.size();
        const int64_t padding = params.c[i], step = params.c[n + i];
        const int64_t first = o * params.b[i] - padding, last = first + step * (params.a[i] - 1) + 1;
        const int64_t missing = std::max<int64_t>(0, -first);
        return {first + (missing + step - 1) / step * step, std::min(last, extent), step,
                std::min(last, extent + padding) - first};
    }
};

/// Call `function(place, depth, row, column)` for each output of a plane, with its spans.
template <typename Function>
void each_window(const Geometry& g, Function&& function) {
    int64_t place = 0;
    for (const Span& depth : g.spans[0])
        for (const Span& row : g.spans[1])
            for (const Span& column : g.spans[2]) function(place++, depth, row, column);
}

/// Call `function(place)` for each element of a window.
template <typename Function>
TENSORA_INLINE void each_element(const Geometry& g, const Span& depth, const Span& row, const Span& column,
                                 Function&& function) {
    for (int64_t d = depth.first; d < depth.last; d += depth.step)
        for (int64_t i = row.first; i < row.last; i += row.step)
            for (int64_t j = column.first; j < column.last; j += column.step)
                function((d * g.in[1] + i) * g.in[2] + j);
}

/// Call `function(i)` for each channel of each image, on several threads.
template <typename Function>
void each_plane(const Tensor& x, int64_t size, Function&& function) {
    const int64_t planes = x.shape()[0] * x.shape()[1];
    parallel_for(planes, std::max<int64_t>(1, grain / 8 / std::max<int64_t>(size, 1)),
                 [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) function(i);
                 });
}

Dims part_of(const Params& params, int i) {
    const int n = params.a.size();
    return Dims(params.c.begin() + int64_t(i) * n, n);
}
Dims out_extents(const Params& params) { return part_of(params, 2); }
Dims in_extents(const Params& params) { return part_of(params, 3); }

// --- largest element -------------------------------------------------------------------------------------

void max_pool_rule(Call& call) {
    const Dims& x = call.input().shape();
    call.make(image_shape(x[0], x[1], out_extents(call.params)), call.input().dtype());
    call.make(call.made[0].shape, DType::i64, 1);
}

template <typename E>
void largest(const Geometry& g, const E* x, E* out, int64_t* places) {
    each_window(g, [&](int64_t o, const Span& depth, const Span& row, const Span& column) {
        E most = -std::numeric_limits<E>::infinity();
        int64_t at = (depth.first * g.in[1] + row.first) * g.in[2] + column.first;
        each_element(g, depth, row, column, [&](int64_t place) {
            const E value = x[place];
            if ((value > most) | (value != value)) {
                most = value;
                at = place;
            }
        });
        out[o] = most;
        places[o] = at;
    });
}

void max_pool_kernel(Call& call) {
    const Geometry g(call.params);
    const T x = prepared(call.in[0]);
    int64_t* const places = call.out[1]->data<int64_t>();
    fill_output(call, [&]<typename E>(const T& out, Tag<E>) {
        each_plane(*x, g.in_size(), [&](int64_t i) {
            largest(g, x->data<E>() + i * g.in_size(), out->data<E>() + i * g.out_size(),
                    places + i * g.out_size());
        });
    });
}

/// Second output: the place of each largest element among those of its channel.
const Op& max_pool_op =
    enter({.name = "max_pool",
           .family = Family::fused,
           .arity = 1,
           .outputs = 2,
           .types = floats,
           .rule = max_pool_rule,
           .cpu = max_pool_kernel,
           .cuda = cuda::max_pool,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] {
                       const Dims &x = c.shape(), flat{x[0], x[1], -1};
                       const T values = reshape(c.grad(), flat), places = reshape(c.output(1), flat);
                       const T nothing = zeros({x[0], x[1], in_extents(c.params()).product()}, c.dtype());
                       return reshape(scatter_add(nothing, places, values, 2), x);
                   });
               },
           .saves = out1});

// --- means: `flag`: whether padding is counted; `x`: what sums are divided by instead, or 0 --------------

/// Call `function(place, factor, depth, row, column)` for each window, whose sum is to be multiplied with the
/// factor.
template <typename Function>
void each_mean(const Geometry& g, const Params& params, Function&& function) {
    each_window(g, [&](int64_t o, const Span& depth, const Span& row, const Span& column) {
        const auto count = [&](const Span& span) {
            return params.flag ? span.extent : std::max<int64_t>(span.last - span.first, 0);
        };
        const double n = params.x != 0 ? params.x : double(count(depth) * count(row) * count(column));
        function(o, 1 / n, depth, row, column);
    });
}

void avg_pool_rule(Call& call) {
    const Dims& x = call.input().shape();
    call.make(image_shape(x[0], x[1], out_extents(call.params)), call.input().dtype());
}

void avg_pool_kernel(Call& call) {
    const Geometry g(call.params);
    const T x = prepared(call.in[0]);
    fill_output(call, [&]<typename E>(const T& out, Tag<E>) {
        each_plane(*x, g.in_size(), [&](int64_t i) {
            const E* const from = x->data<E>() + i * g.in_size();
            E* const to = out->data<E>() + i * g.out_size();
            each_mean(g, call.params,
                      [&](int64_t o, double factor, const Span& d, const Span& r, const Span& c) {
                          double sum = 0;
                          each_element(g, d, r, c, [&](int64_t place) { sum += double(from[place]); });
                          to[o] = E(sum * factor);
                      });
        });
    });
}

void avg_pool_back_rule(Call& call) {
    const Dims& y = call.input().shape();
    call.make(image_shape(y[0], y[1], in_extents(call.params)), call.input().dtype());
}

void avg_pool_back_kernel(Call& call) {
    const Geometry g(call.params);
    const T y = prepared(call.in[0]);
    fill_output(call, [&]<typename E>(const T& out, Tag<E>) {
        each_plane(*y, g.in_size(), [&](int64_t i) {
            const E* const from = y->data<E>() + i * g.out_size();
            E* const to = out->data<E>() + i * g.in_size();
            std::fill_n(to, g.in_size(), E(0));
            each_mean(g, call.params,
                      [&](int64_t o, double factor, const Span& d, const Span& r, const Span& c) {
                          const E share = E(from[o] * factor);
                          each_element(g, d, r, c, [&](int64_t place) { to[place] += share; });
                      });
        });
    });
}

T with_params(const char* op, const T& x, const Params& params) { return run(op_named(op), params, x); }

/// Each is linear, and the other one is its gradient.
const Op& avg_pool_op =
    enter({.name = "avg_pool",
           .family = Family::fused,
           .arity = 1,
           .types = floats,
           .rule = avg_pool_rule,
           .cpu = avg_pool_kernel,
           .cuda = cuda::avg_pool,
           .vjp = [](Backward& c) {
               c.give(0, [&] { return with_params("avg_pool_back", c.grad(), c.params()); });
           }});
const Op& avg_pool_back_op = enter(
    {.name = "avg_pool_back",
     .family = Family::fused,
     .arity = 1,
     .types = floats,
     .rule = avg_pool_back_rule,
     .cpu = avg_pool_back_kernel,
     .cuda = cuda::avg_pool_back,
     .vjp = [](Backward& c) { c.give(0, [&] { return with_params("avg_pool", c.grad(), c.params()); }); }});

// --- windows as columns ----------------------------------------------------------------------------------

/// Call `function(column, place)` for each element of all windows of a plane that lies in the image; column
/// is its place among those of the result, (elements of a window, windows).
template <typename Function>
void each_column(const Geometry& g, const Params& params, Function&& function) {
    const int64_t rows = params.a[0], columns = params.a[1], steps[] = {params.c[2], params.c[3]};
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            for (int64_t o = 0; o < g.out_size(); ++o) {
                const int64_t y = o / g.out[2] * params.b[0] - params.c[0] + i * steps[0];
                const int64_t x = o % g.out[2] * params.b[1] - params.c[1] + j * steps[1];
                if (y >= 0 && y < g.in[1] && x >= 0 && x < g.in[2])
                    function((i * columns + j) * g.out_size() + o, y * g.in[2] + x);
            }
}

void unfold_rule(Call& call) {
    const Dims& x = call.input().shape();
    call.make({x[0], x[1] * call.params.a.product(), out_extents(call.params).product()},
              call.input().dtype());
}

void unfold_kernel(Call& call) {
    const Geometry g(call.params);
    const T x = prepared(call.in[0]);
    const int64_t each = call.params.a.product() * g.out_size();
    fill_output(call, [&]<typename E>(const T& out, Tag<E>) {
        each_plane(*x, each, [&](int64_t i) {
            const E* const from = x->data<E>() + i * g.in_size();
            E* const to = out->data<E>() + i * each;
            std::fill_n(to, each, E(0));
            each_column(g, call.params, [&](int64_t column, int64_t place) { to[column] = from[place]; });
        });
    });
}

void fold_rule(Call& call) {
    const Dims &y = call.input().shape(), &kernel = call.params.a;
    const int64_t windows = out_extents(call.params).product();
    require_shape(y[1] % kernel.product() == 0 && y[2] == windows, "[fold] columns of shape ", y.words(),
                  "; windows of ", kernel.words(), " over ", in_extents(call.params).words(),
                  " make (images, a multiple of ", kernel.product(), ", ", windows, ")");
    call.make(image_shape(y[0], y[1] / kernel.product(), in_extents(call.params)), call.input().dtype());
}

void fold_kernel(Call& call) {
    const Geometry g(call.params);
    const T y = prepared(call.in[0]);
    const int64_t each = call.params.a.product() * g.out_size();
    fill_output(call, [&]<typename E>(const T& out, Tag<E>) {
        each_plane(*out, each, [&](int64_t i) {
            const E* const from = y->data<E>() + i * each;
            E* const to = out->data<E>() + i * g.in_size();
            std::fill_n(to, g.in_size(), E(0));
            each_column(g, call.params, [&](int64_t column, int64_t place) { to[place] += from[column]; });
        });
    });
}

/// Each is linear, and the other one is its gradient.
const Op& unfold_op =
    enter({.name = "unfold",
           .family = Family::movement,
           .arity = 1,
           .types = floats,
           .rule = unfold_rule,
           .cpu = unfold_kernel,
           .cuda = cuda::unfold,
           .vjp = [](Backward& c) { c.give(0, [&] { return with_params("fold", c.grad(), c.params()); }); }});
const Op& fold_op = enter(
    {.name = "fold",
     .family = Family::movement,
     .arity = 1,
     .types = floats,
     .rule = fold_rule,
     .cpu = fold_kernel,
     .cuda = cuda::fold,
     .vjp = [](Backward& c) { c.give(0, [&] { return with_params("unfold", c.grad(), c.params()); }); }});

// --- parameters ------------------------------------------------------------------------------------------

void append(Dims& to, const Dims& more) {
    for (int64_t value : more) to.push_back(value);
}

void check_windows(const char* op, const Dims& extents, const Dims& kernel, const Windows& windows) {
    const int n = kernel.size();
    require_shape(extents.size() == n && windows.stride.size() == n && windows.padding.size() == n &&
                      windows.dilation.size() == n,
                  "[", op, "] extents ", extents.words(), " and windows of ", kernel.words(),
                  "; give one number for each extent");
    for (int i = 0; i < n; ++i)
        require(kernel[i] > 0 && windows.stride[i] > 0 && windows.dilation[i] > 0 && windows.padding[i] >= 0,
                "[", op, "] kernel ", kernel.words(), ", stride ", windows.stride.words(), ", dilation ",
                windows.dilation.words(), ", padding ", windows.padding.words(),
                "; padding is at least 0, all others at least 1");
    check_sizes(op, windows);
    for (int i = 0; i < n; ++i)
        require(kernel[i] <= (int64_t(1) << 62) / windows.dilation[i], "[", op, "] windows of ",
                kernel.words(), " with dilation ", windows.dilation.words(),
                " reach over more than 2**62 elements");
}

/// With `ceil` a last window may reach over the end, if it begins before the end of the image or its left
/// padding.
int64_t out_extent(int64_t extent, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                   bool ceil) {
    const int64_t room = extent + 2 * padding - dilation * (kernel - 1) - 1;
    if (room < 0 && !(ceil && room + stride > 0)) return 0;
    const int64_t outs = (room + (ceil ? stride - 1 : 0)) / stride + 1;
    return ceil && (outs - 1) * stride >= extent + padding ? outs - 1 : outs;
}

Params windows_over(const char* op, const Dims& extents, const Dims& kernel, const Windows& windows,
                    bool ceil) {
    check_windows(op, extents, kernel, windows);
    Dims outs;
    for (int i = 0; i < kernel.size(); ++i) {
        outs.push_back(out_extent(extents[i], kernel[i], windows.stride[i], windows.padding[i],
                                  windows.dilation[i], ceil));
        require_shape(outs[i] > 0, "[", op, "] windows of ", kernel.words(), " do not fit into extents ",
                      extents.words(), " with padding ", windows.padding.words());
    }
    Params params;
    params.a = kernel;
    params.b = windows.stride;
    for (const Dims& part : {windows.padding, windows.dilation, outs, extents}) append(params.c, part);
    return params;
}

void check_image(const char* op, const T& x, int n) {
    require_shape(x->dims() == n + 2, "[", op, "] shape ", x->shape().words(), "; give (images, channels, ",
                  n, " extents)");
}

Params pool_params(const char* op, const T& x, const Dims& kernel, const Windows& windows, bool ceil) {
    check_image(op, x, kernel.size());
    const Params params = windows_over(op, extents(x->shape()), kernel, windows, ceil);
    for (int i = 0; i < kernel.size(); ++i)
        require(2 * windows.padding[i] <= windows.dilation[i] * (kernel[i] - 1) + 1, "[", op, "] padding ",
                windows.padding.words(), " for windows of ", kernel.words(),
                "; give at most half of a window");
    return params;
}

/// Windows that share the image evenly.
Params shared_params(const char* op, const T& x, const Dims& outs) {
    check_image(op, x, outs.size());
    Params params;
    const Dims in = extents(x->shape());
    for (int i = 0; i < outs.size(); ++i)
        require_shape(outs[i] > 0 && in[i] > 0, "[", op, "] ", outs.words(), " windows over extents ",
                      in.words(), "; both are at least 1");
    params.a = params.b = Dims::filled(outs.size(), 1);
    for (const Dims& part : {params.a, params.a, outs, in}) append(params.c, part);
    params.mode = 1;
    return params;
}

}  // namespace

std::array<T, 3> max_pool(const T& x, const Dims& kernel, const Windows& windows, bool ceil) {
    return run_all(max_pool_op, pool_params("max_pool", x, kernel, windows, ceil), x);
}
std::array<T, 3> adaptive_max_pool(const T& x, const Dims& outs) {
    return run_all(max_pool_op, shared_params("adaptive_max_pool", x, outs), x);
}

T avg_pool(const T& x, const Dims& kernel, const Windows& windows, bool ceil, bool count_padding,
           double divisor) {
    Params params = pool_params("avg_pool", x, kernel, windows, ceil);
    params.flag = count_padding;
    params.x = divisor;
    return run(avg_pool_op, params, x);
}
T adaptive_avg_pool(const T& x, const Dims& outs) {
    return run(avg_pool_op, shared_params("adaptive_avg_pool", x, outs), x);
}

T unfold(const T& x, const Dims& kernel, const Windows& windows) {
    check_image("unfold", x, 2);
    return run(unfold_op, windows_over("unfold", extents(x->shape()), kernel, windows, false), x);
}
T fold(const T& y, const Dims& outs, const Dims& kernel, const Windows& windows) {
    require_shape(y->dims() == 3, "[fold] shape ", y->shape().words(),
                  "; give (images, channels * window, windows)");
    return run(fold_op, windows_over("fold", outs, kernel, windows, false), y);
}

}  // namespace accelera::tensora
