// Entries of convolution in one to three dimensions. Each of the three is linear in both of its inputs and
// has the other two as gradients.
#include <algorithm>
#include <vector>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"
#include "tensora/ops/images.h"

namespace accelera::tensora {

namespace {

// --- geometry: one and two dimensions are three, the first of extent 1 -----------------------------------

/// params of all: a: strides, b: padding, c: dilations, and behind them the extents of the input or the
/// kernel where these are the result; mode: groups.
struct Geometry {
    int64_t images, groups, in_channels, out_channels;  // channels of one group
    int64_t in[3], kernel[3], out[3], stride[3], padding[3], dilation[3];

    Geometry(const Params& params, const Dims& x, const Dims& weight, const Dims& y)
        : images(x[0]), groups(params.mode), in_channels(weight[1]), out_channels(weight[0] / params.mode) {
        const int n = params.a.size();
        for (int i = 0; i < 3; ++i) {
            const int at = i - (3 - n);
            const bool used = at >= 0;
            in[i] = used ? x[2 + at] : 1;
            kernel[i] = used ? weight[2 + at] : 1;
            out[i] = used ? y[2 + at] : 1;
            stride[i] = used ? params.a[at] : 1;
            padding[i] = used ? params.b[at] : 0;
            dilation[i] = used ? params.c[at] : 1;
        }
    }
    int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
    int64_t in_size() const { return in[0] * in[1] * in[2]; }
    int64_t out_size() const { return out[0] * out[1] * out[2]; }
};

Axis forward_axis(const Geometry& g, int i) {
    Axis axis;
    for (int64_t t = 0; t < g.kernel[i]; ++t) {
        axis.from.push_back(t * g.dilation[i] - g.padding[i]);
        axis.tap.push_back(t);
    }
    axis.step = g.stride[i];
    axis.outs = g.out[i];
    axis.extent = g.in[i];
    axis.find_rows();
    return axis;
}

/// The places of the input that are `residue` modulo the stride, as a convolution of the output's gradient:
/// there stride * o + dilation * tap = place + padding.
Axis gradient_axis(const Geometry& g, int i, int64_t residue) {
    const int64_t s = g.stride[i], missing = g.padding[i] - residue;
    const int64_t first = missing > 0 ? (missing + s - 1) / s : -((-missing) / s);
    Axis axis;
    for (int64_t t = 0; t < g.kernel[i]; ++t) {
        const int64_t reach = t * g.dilation[i] - residue;
        if (reach % s) continue;
        axis.from.push_back(first - reach / s);
        axis.tap.push_back(t);
    }
    axis.to = s * first - missing;
    axis.to_step = s;
    axis.outs = axis.to < g.in[i] ? (g.in[i] - 1 - axis.to) / s + 1 : 0;
    axis.extent = g.out[i];
    axis.find_rows();
    return axis;
}

// --- images from images ----------------------------------------------------------------------------------

template <typename E>
Pass<E> forward_pass(const Geometry& g, const T& x, const T& weight, const T& bias, const T& out) {
    Pass<E> pass{{forward_axis(g, 0), forward_axis(g, 1), forward_axis(g, 2)},
                 g.images,
                 g.groups,
                 g.in_channels,
                 g.out_channels,
                 x->data<E>(),
                 weight->data<E>(),
                 bias ? bias->data<E>() : nullptr,
                 out->data<E>(),
                 {g.out[0], g.out[1], g.out[2]}};
    return pass;
}

constexpr int64_t side = 16;  // channels of a block whose rows are read and written in turn

/// Kernels of the taps that one pass over the gradient has, with input and output channels exchanged.
template <typename E>
void exchange_channels(const Geometry& g, const Pass<E>& pass, const E* weight, E* to) {
    const int64_t size = g.kernel_size(), taps = pass.taps(), blocks = (g.in_channels + side - 1) / side;
    const auto exchange = [&](const E* from, E* into) {
        if (taps == size) return void(std::copy_n(from, size, into));
        for (int64_t d : pass.axes[0].tap)
            for (int64_t i : pass.axes[1].tap)
                for (int64_t j : pass.axes[2].tap) *into++ = from[(d * g.kernel[1] + i) * g.kernel[2] + j];
    };
    const int64_t each = std::max<int64_t>(1, g.out_channels * side * size);
    parallel_for(g.groups * blocks, grain / each + 1, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
            const int64_t group = block / blocks, first = block % blocks * side;
            for (int64_t o = 0; o < g.out_channels; ++o)
                for (int64_t c = first; c < std::min(first + side, g.in_channels); ++c)
                    exchange(weight + ((group * g.out_channels + o) * g.in_channels + c) * size,
                             to + ((group * g.in_channels + c) * g.out_channels + o) * taps);
        }
    });
}

/// Residues modulo the stride of the places that some tap reaches; all others have no gradient.
std::vector<int64_t> reached_residues(const Geometry& g, int axis) {
    std::vector<int64_t> residues;
    for (int64_t t = 0; t < g.kernel[axis]; ++t) residues.push_back(t * g.dilation[axis] % g.stride[axis]);
    std::sort(residues.begin(), residues.end());
    residues.erase(std::unique(residues.begin(), residues.end()), residues.end());
    return residues;
}

/// For each reached residue of places modulo the strides, a pass with the taps that reach these places.
template <typename E>
void input_passes(const Geometry& g, const T& y, const T& weight, const T& out) {
    const Scratch exchanged(std::max<int64_t>(1, weight->size()) * int64_t(sizeof(E)));
    const std::vector<int64_t> residues[] = {reached_residues(g, 0), reached_residues(g, 1),
                                             reached_residues(g, 2)};
    bool all = true;
    for (int i = 0; i < 3; ++i) all = all && int64_t(residues[i].size()) == g.stride[i];
    if (!all) std::fill_n(out->data<E>(), out->size(), E(0));
    for (int64_t d : residues[0])
        for (int64_t i : residues[1])
            for (int64_t j : residues[2]) {
                Pass<E> pass{{gradient_axis(g, 0, d), gradient_axis(g, 1, i), gradient_axis(g, 2, j)},
                             g.images,
                             g.groups,
                             g.out_channels,
                             g.in_channels,
                             y->data<E>(),
                             exchanged.as<E>(),
                             nullptr,
                             out->data<E>(),
                             {g.in[0], g.in[1], g.in[2]}};
                exchange_channels(g, pass, weight->data<E>(), exchanged.as<E>());
                run_pass(pass);
            }
}

constexpr double most_flops = 1e9;  // of a piece of work, which an interrupt waits for

// --- kernels from images ---------------------------------------------------------------------------------

/// Elements of a row of all outputs: a multiple of what loops read at once, and of odd length where many rows
/// a power of two apart would share few places of a cache.
template <typename E>
int64_t row_width(const Geometry& g) {
    const int64_t lanes = window_loops<E>().lanes, whole = (g.out_channels + lanes - 1) / lanes * lanes;
    return whole * int64_t(sizeof(E)) % 512 ? whole : whole + lanes;
}

/// Sums over some images of the products of what each tap reads with each output's gradient.
template <typename E>
class KernelSums {
  public:
    static constexpr int64_t step = 128;  // places at a time

    KernelSums(const Geometry& g, const Axis (&axes)[3], const Blocks& blocks, int64_t channels)
        : g_(g),
          axes_(axes),
          channels_(channels),
          width_(row_width<E>(g)),
          slab_(axes, channels, blocks.rows, blocks.columns),
          begins_((channels * g.kernel_size() + step) * int64_t(sizeof(int64_t))),
          grads_(blocks.rows * slab_.width() * width_ * int64_t(sizeof(E))) {
        int64_t* const rows = begins_.as<int64_t>() + channels * g.kernel_size();
        for (int64_t i = 0; i < step; ++i) rows[i] = i * width_;
    }

    /// Adds one block of an image to `sums`: the taps of some channels, and for each all outputs.
    void add(const E* x, const E* y, int64_t channels, const Block& block, E* sums) {
        slab_.shape(block.rows, block.columns);
        slab_.begins(begins_.as<int64_t>());
        slab_.fill(x, channels, block);
        fill_grads(y, block);
        multiply(channels, slab_.places(block, slab_.width()), sums);
    }

  private:
    void multiply(int64_t channels, int64_t places, E* sums) const {
        const int64_t* const begins = begins_.as<int64_t>();
        for (int64_t at = 0; at < places; at += step)
            window_loops<E>().multiply({channels * g_.kernel_size(), g_.out_channels,
                                        std::min(step, places - at), slab_.data() + at, begins, 1,
                                        grads_.as<E>() + at * width_, begins + channels_ * g_.kernel_size(),
                                        sums, width_, true});
    }
    /// Gradients of a block by the slab's places, the outputs of one place side by side.
    void fill_grads(const E* y, const Block& block) const {
        E* to = grads_.as<E>();
        std::fill_n(to, block.rows * slab_.width() * width_, E(0));
        const int64_t size = g_.out_size();
        for (int64_t i = 0; i < block.rows; ++i, to += slab_.width() * width_) {
            const E* const from = y + (block.depth * g_.out[1] + block.row + i) * g_.out[2] + block.column;
            for (int64_t j = 0; j < block.columns; j += side)
                for (int64_t o = 0; o < g_.out_channels; ++o)
                    for (int64_t k = j; k < std::min(j + side, block.columns); ++k)
                        to[k * width_ + o] = from[o * size + k];
        }
    }

    const Geometry& g_;
    const Axis (&axes_)[3];
    int64_t channels_, width_;
    Slab<E> slab_;
    Scratch begins_;
    Scratch grads_;
};

/// How the sums of a kernel's gradient are split: by shapes alone, so that the result is the same for every
/// number of threads.
struct KernelSplit {
    int64_t channels, channel_parts, image_parts;

    explicit KernelSplit(const Geometry& g) {
        constexpr int64_t wanted = 16;
        const int64_t size = std::max<int64_t>(1, g.kernel_size());
        const int64_t units = std::max<int64_t>(1, g.groups * g.images);
        channel_parts = std::max((g.in_channels * size + 599) / 600, (wanted - 1) / units + 1);
        channel_parts = std::clamp<int64_t>(channel_parts, 1, std::max<int64_t>(1, g.in_channels));
        channels = (g.in_channels + channel_parts - 1) / channel_parts;
        channel_parts = (g.in_channels + channels - 1) / channels;
        image_parts = std::clamp<int64_t>((wanted - 1) / (g.groups * channel_parts) + 1, 1,
                                          std::max<int64_t>(1, g.images));
    }
    int64_t units(const Geometry& g) const { return g.groups * channel_parts * image_parts; }
};

/// Sums of the parts of the images, as the weight lies.
template <typename E>
void join_parts(const Geometry& g, const KernelSplit& split, int64_t width, const E* sums, E* out) {
    const int64_t size = g.kernel_size(), rows = split.channels * size, each = rows * width;
    const int64_t depth = g.in_channels * size, blocks = (g.out_channels + side - 1) / side;
    const auto join = [&](int64_t group, int64_t k, int64_t o) {
        const int64_t unit = (group * split.channel_parts + k / rows) * split.image_parts;
        const E* const from = sums + unit * each + k % rows * width + o;
        double sum = 0;
        for (int64_t p = 0; p < split.image_parts; ++p) sum += double(from[p * each]);
        out[(group * g.out_channels + o) * depth + k] = E(sum);
    };
    parallel_for(g.groups * blocks, grain / std::max<int64_t>(1, depth * side) + 1,
                 [&](int64_t begin, int64_t end) {
                     for (int64_t block = begin; block < end; ++block)
                         for (int64_t k = 0; k < depth; ++k)
                             for (int64_t o = block % blocks * side;
                                  o < std::min(block % blocks * side + side, g.out_channels); ++o)
                                 join(block / blocks, k, o);
                 });
}

template <typename E>
void kernel_gradient(const Geometry& g, const T& x, const T& y, const T& out) {
    const Axis axes[3] = {forward_axis(g, 0), forward_axis(g, 1), forward_axis(g, 2)};
    const KernelSplit split(g);
    const Blocks blocks(axes, split.channels, sizeof(E));
    const int64_t count = blocks.count(axes), width = row_width<E>(g);
    const int64_t each = split.channels * g.kernel_size() * width;
    const Scratch sums(split.units(g) * each * int64_t(sizeof(E)));
    std::fill_n(sums.as<E>(), split.units(g) * each, E(0));
    // In rounds of some blocks: between them an interrupt is heard.
    const int64_t step =
        1 + int64_t(most_flops / (2.0 * double(each) * double(blocks.rows * blocks.columns)));
    const int64_t most = (g.images + split.image_parts - 1) / split.image_parts * count;
    const auto add_round = [&](KernelSums<E>& work, int64_t unit, int64_t round) {
        const int64_t part = unit % split.image_parts, group = unit / split.image_parts / split.channel_parts;
        const int64_t channel = unit / split.image_parts % split.channel_parts * split.channels;
        const int64_t first = part * g.images / split.image_parts,
                      last = (part + 1) * g.images / split.image_parts;
        for (int64_t i = round; i < std::min(round + step, (last - first) * count); ++i) {
            const int64_t at = (first + i / count) * g.groups + group;
            work.add(x->data<E>() + (at * g.in_channels + channel) * g.in_size(),
                     y->data<E>() + at * g.out_channels * g.out_size(),
                     std::min(split.channels, g.in_channels - channel), blocks.at(i % count, axes),
                     sums.as<E>() + unit * each);
        }
    };
    for (int64_t round = 0; round < most; round += step)
        parallel_for(split.units(g), 1, [&](int64_t begin, int64_t end) {
            KernelSums<E> work(g, axes, blocks, split.channels);
            for (int64_t unit = begin; unit < end; ++unit) add_round(work, unit, round);
        });
    join_parts(g, split, width, sums.as<E>(), out->data<E>());
}

// --- the table -------------------------------------------------------------------------------------------

/// Extents behind the dilations.
Dims wished_extents(const Params& params) {
    const int n = params.a.size();
    return Dims(params.c.begin() + n, params.c.size() - n);
}

/// Elements from the first to the last that a kernel reads.
int64_t reach(int64_t kernel, int64_t dilation) {
    int64_t distance = 0;
    const bool overflows = __builtin_mul_overflow(dilation, kernel - 1, &distance);
    return overflows || distance == INT64_MAX ? INT64_MAX : distance + 1;
}

Dims output_extents(const char* op, const Dims& in, const Dims& kernel, const Params& params) {
    Dims result;
    for (int i = 0; i < in.size(); ++i) {
        const int64_t padded = in[i] + 2 * params.b[i], wide = reach(kernel[i], params.c[i]);
        require_shape(kernel[i] > 0 && padded >= wide, "[", op, "] a kernel that reaches over ", wide,
                      " elements, and ", padded, " of the input with padding, in extent ", i, " of ",
                      in.words(), "; enlarge the padding");
        result.push_back((padded - wide) / params.a[i] + 1);
    }
    return result;
}

void check_channels(const char* op, int64_t in, int64_t out, const Dims& weight, int64_t groups) {
    require_shape(groups > 0 && out % groups == 0 && in == weight[1] * groups, "[", op, "] ", in,
                  " input channels and ", out, " output channels in ", groups,
                  " groups do not fit a weight of shape ", weight.words(),
                  "; it is (output channels, input channels / groups, extents...)");
}

void conv_rule(Call& call) {
    const Dims &x = call.input(0).shape(), &weight = call.input(1).shape();
    check_types(call);
    check_channels("conv", x[1], weight[0], weight, call.params.mode);
    if (call.in.size() == 3)
        require_shape(call.input(2).shape() == Dims{weight[0]}, "[conv] a bias of shape ",
                      call.input(2).shape().words(), " for ", weight[0], " output channels");
    call.make(image_shape(x[0], weight[0], output_extents("conv", extents(x), extents(weight), call.params)),
              call.input().dtype());
}

void conv_kernel(Call& call) {
    const T x = prepared(call.in[0]), weight = prepared(call.in[1]);
    const T bias = call.in.size() == 3 ? prepared(call.in[2]) : T();
    const Geometry g(call.params, x->shape(), weight->shape(), call.out[0]->shape());
    fill_output(
        call, [&]<typename E>(const T& out, Tag<E>) { run_pass(forward_pass<E>(g, x, weight, bias, out)); });
}

/// Copies of the tensors, sums of parts of the kernel's gradient, and blocks of each thread.
int64_t conv_workspace(const Call& call) {
    return 2 * tensor_bytes(call) + int64_t(thread_count()) * (16 << 10);
}

Cost conv_cost(const Dims& y, const Dims& weight, const Call& call) {
    double bytes = double(call.made[0].shape.product() * size_of(call.made[0].dtype));
    for (const T& x : call.in) bytes += double(x->size() * size_of(x->dtype()));
    return {2 * double(y.product()) * double(weight.product()) / double(std::max<int64_t>(1, weight[0])),
            bytes};
}

T input_gradient(const T& y, const T& weight, const Params& params, const Dims& extents);
T weight_gradient(const T& x, const T& y, const Params& params, const Dims& extents);
T convolved(const T& x, const T& weight, const Params& params);

void conv_vjp(Backward& c) {
    c.give(0, [&] { return input_gradient(c.grad(), c.input(1), c.params(), extents(c.shape(0))); });
    c.give(1, [&] { return weight_gradient(c.input(0), c.grad(), c.params(), extents(c.shape(1))); });
    if (c.inputs() < 3) return;
    c.give(2, [&] {
        Dims axes{0};
        for (int i = 2; i < c.grad()->dims(); ++i) axes.push_back(i);
        return sum(c.grad(), axes, false);
    });
}

const Op& conv_op = enter(
    {.name = "conv",
     .family = Family::contraction,
     .arity = -1,
     .types = floats,
     .rule = conv_rule,
     .cpu = conv_kernel,
     .cuda = cuda::conv,
     .vjp = conv_vjp,
     .saves = in0 | in1,
     .autocast = Precision::lower,
     .cost = [](const Call& call) { return conv_cost(call.made[0].shape, call.input(1).shape(), call); },
     .workspace = conv_workspace});

void conv_input_rule(Call& call) {
    const Dims &y = call.input(0).shape(), &weight = call.input(1).shape();
    check_types(call);
    const Dims in = wished_extents(call.params);
    const int64_t channels = weight[1] * call.params.mode;
    check_channels("conv_input", channels, y[1], weight, call.params.mode);
    require_shape(output_extents("conv_input", in, extents(weight), call.params) == extents(y),
                  "[conv_input] extents ", extents(y).words(), " are not those of a convolution of ",
                  in.words());
    call.make(image_shape(y[0], channels, in), call.input().dtype());
}

void conv_input_kernel(Call& call) {
    const T y = prepared(call.in[0]), weight = prepared(call.in[1]);
    const Geometry g(call.params, call.out[0]->shape(), weight->shape(), y->shape());
    fill_output(call, [&]<typename E>(const T& out, Tag<E>) { input_passes<E>(g, y, weight, out); });
}

const Op& conv_input_op = enter(
    {.name = "conv_input",
     .family = Family::contraction,
     .arity = 2,
     .types = floats,
     .rule = conv_input_rule,
     .cpu = conv_input_kernel,
     .cuda = cuda::conv_input,
     .vjp =
         [](Backward& c) {
             c.give(0, [&] { return convolved(c.grad(), c.input(1), c.params()); });
             c.give(1,
                    [&] { return weight_gradient(c.grad(), c.input(0), c.params(), extents(c.shape(1))); });
         },
     .saves = in0 | in1,
     .autocast = Precision::lower,
     .cost = [](const Call& call) { return conv_cost(call.input(0).shape(), call.input(1).shape(), call); },
     .workspace = conv_workspace});

void conv_weight_rule(Call& call) {
    const Dims &x = call.input(0).shape(), &y = call.input(1).shape();
    check_types(call);
    const Dims weight = image_shape(y[1], x[1] / std::max(1, call.params.mode), wished_extents(call.params));
    check_channels("conv_weight", x[1], y[1], weight, call.params.mode);
    require_shape(
        x[0] == y[0] && output_extents("conv_weight", extents(x), extents(weight), call.params) == extents(y),
        "[conv_weight] shapes ", x.words(), " and ", y.words(), " are not those of a convolution with ",
        weight.words());
    call.make(weight, call.input().dtype());
}

void conv_weight_kernel(Call& call) {
    const T x = prepared(call.in[0]), y = prepared(call.in[1]);
    const Geometry g(call.params, x->shape(), call.out[0]->shape(), y->shape());
    fill_output(call, [&]<typename E>(const T& out, Tag<E>) { kernel_gradient<E>(g, x, y, out); });
}

const Op& conv_weight_op = enter(
    {.name = "conv_weight",
     .family = Family::contraction,
     .arity = 2,
     .types = floats,
     .rule = conv_weight_rule,
     .cpu = conv_weight_kernel,
     .cuda = cuda::conv_weight,
     .vjp =
         [](Backward& c) {
             c.give(0, [&] { return input_gradient(c.input(1), c.grad(), c.params(), extents(c.shape(0))); });
             c.give(1, [&] { return convolved(c.input(0), c.grad(), c.params()); });
         },
     .saves = in0 | in1,
     .cost = [](const Call& call) { return conv_cost(call.input(1).shape(), call.made[0].shape, call); },
     .workspace = conv_workspace});

/// The parameters with other extents behind the dilations.
Params wishing(const Params& given, const Dims& extents) {
    Params params = given;
    params.c.resize(params.a.size());
    for (int64_t extent : extents) params.c.push_back(extent);
    return params;
}

T convolved(const T& x, const T& weight, const Params& params) {
    return run(conv_op, wishing(params, {}), x, weight);
}
T input_gradient(const T& y, const T& weight, const Params& params, const Dims& extents) {
    return run(conv_input_op, wishing(params, extents), y, weight);
}
T weight_gradient(const T& x, const T& y, const Params& params, const Dims& extents) {
    return run(conv_weight_op, wishing(params, extents), x, y);
}

Params checked(const char* op, const T& x, const T& weight, const Windows& windows, int64_t groups) {
    const int n = windows.stride.size();
    require_shape(x->dims() == n + 2 && weight->dims() == n + 2, "[", op, "] shapes ", x->shape().words(),
                  " and ", weight->shape().words(), "; for ", n, " extents both need ", n + 2, " axes");
    require(windows.padding.size() == n && windows.dilation.size() == n, "[", op, "] ", n, " strides, ",
            windows.padding.size(), " paddings and ", windows.dilation.size(), " dilations");
    for (int i = 0; i < n; ++i)
        require(windows.stride[i] > 0 && windows.dilation[i] > 0 && windows.padding[i] >= 0, "[", op,
                "] stride ", windows.stride.words(), ", dilation ", windows.dilation.words(), ", padding ",
                windows.padding.words(), "; strides and dilations are at least 1, padding at least 0");
    check_sizes(op, windows);
    require(groups > 0 && groups <= INT32_MAX, "[", op, "] ", groups,
            " groups; give at least 1 and at most one for each channel");
    Params params;
    params.a = windows.stride;
    params.b = windows.padding;
    params.c = windows.dilation;
    params.mode = int(groups);
    return params;
}

}  // namespace

T conv(const T& x, const T& weight, const T& bias, const Windows& windows, int64_t groups) {
    const Params params = checked("conv", x, weight, windows, groups);
    return bias ? run(conv_op, params, x, weight, bias) : run(conv_op, params, x, weight);
}

T conv_input(const T& y, const T& weight, const Windows& windows, int64_t groups, const Dims& extents) {
    return input_gradient(y, weight, checked("conv_input", y, weight, windows, groups), extents);
}

T conv_weight(const T& x, const T& y, const Windows& windows, int64_t groups, const Dims& extents) {
    return weight_gradient(x, y, checked("conv_weight", x, y, windows, groups), extents);
}

}  // namespace accelera::tensora
