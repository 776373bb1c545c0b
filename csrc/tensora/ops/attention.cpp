// Entries of scaled dot product attention in blocks of queries and keys, whose scores are never held all at
// once: T. Dao et al., "FlashAttention" (2022), and T. Dao, "FlashAttention-2" (2023).
#include <algorithm>
#include <cmath>
#include <limits>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

constexpr int64_t query_block = 64, key_block = 512;
/// Step between rows of scores and of transposed keys: no power of two, for which a cache has few places.
constexpr int64_t key_line = key_block + 16;

int64_t rounded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/// params of both entries: x: what scores are multiplied with; flag: whether a query sees only the keys up to
/// its own place.
struct Shapes {
    int64_t batch, heads, queries, keys, width, value_width;
    int64_t key_heads, group;  ///< `group` heads of queries share one of keys
    bool causal;
    double scale;

    Shapes(const Tensor& query, const Tensor& key, const Tensor& value, const Params& params)
        : batch(query.shape()[0]),
          heads(query.shape()[1]),
          queries(query.shape()[2]),
          keys(key.shape()[2]),
          width(query.shape()[3]),
          value_width(value.shape()[3]),
          key_heads(key.shape()[1]),
          group(heads / std::max<int64_t>(1, key_heads)),
          causal(params.flag),
          scale(params.x) {}
    /// Blocks of queries whose work is short enough that an interrupt can wait for it.
    int64_t short_blocks(double products) const {
        constexpr double most_flops = 1e9;
        const double flops = products * double(query_block) * double(keys) * double(width + value_width);
        return 1 + int64_t(most_flops / (flops + 1));
    }
    int64_t query_blocks() const { return (queries + query_block - 1) / query_block; }
    /// Keys that the queries before `last` see.
    int64_t seen(int64_t last) const { return causal ? std::min(keys, last) : keys; }
};

/// Where rows begin that lie `step` apart.
class Steps {
  public:
    Steps(int64_t n, int64_t step) : scratch_(n * int64_t(sizeof(int64_t))) {
        for (int64_t i = 0; i < n; ++i) scratch_.as<int64_t>()[i] = i * step;
    }
    operator const int64_t*() const { return scratch_.as<int64_t>(); }

  private:
    Scratch scratch_;
};

template <typename E>
struct Room {
    explicit Room(int64_t n) : scratch(std::max<int64_t>(n, 1) * int64_t(sizeof(E))) {}
    operator E*() const { return scratch.as<E>(); }
    Scratch scratch;
};

/// Rows of one head of a tensor (batch, heads, rows, columns), of `width` elements: where they lie, or copied
/// with zeros at their ends. The columns lie side by side.
template <typename E>
class Rows {
  public:
    Rows(const Tensor& x, int64_t most, int64_t width)
        : x_(x),
          width_(width),
          copies_(x.shape()[3] != width),
          step_(copies_ ? width : x.strides()[2]),
          room_(copies_ ? most * width : 0),
          at(std::max(query_block, key_block), step_) {}

    void load(int64_t batch, int64_t head, int64_t first, int64_t last) {
        const int64_t row_step = x_.strides()[2], columns = x_.shape()[3];
        data_ = x_.data<E>() + batch * x_.strides()[0] + head * x_.strides()[1] + first * row_step;
        if (!copies_) return;
        E* to = room_;
        for (int64_t i = 0; i < last - first; ++i, to += width_)
            std::fill(std::copy_n(data_ + i * row_step, columns, to), to + width_, E(0));
        data_ = room_;
    }
    const E* row(int64_t i) const { return data_ + i * step_; }

  private:
    const Tensor& x_;
    int64_t width_;
    bool copies_;
    int64_t step_;
    Room<E> room_;
    const E* data_ = nullptr;

  public:
    const Steps at;  ///< where rows begin
};

/// One head of a tensor in blocks of rows, each transposed, with zeros behind the last row.
template <typename E>
class TurnedHead {
  public:
    explicit TurnedHead(const Tensor& x)
        : x_(x), room_(rounded(x.shape()[2], key_block) / key_block * x.shape()[3] * key_line) {}

    void load(int64_t batch, int64_t head) {
        const int64_t rows = x_.shape()[2], columns = x_.shape()[3], step = x_.strides()[2];
        const E* from = x_.data<E>() + batch * x_.strides()[0] + head * x_.strides()[1];
        E* to = room_;
        for (int64_t first = 0; first < rows; first += key_block) {
            const int64_t n = std::min(key_block, rows - first), padded = rounded(n, 16);
            window_loops<E>().turn(n, columns, from, step, to, key_line);
            if (padded != n)
                for (int64_t j = 0; j < columns; ++j)
                    std::fill(to + j * key_line + n, to + j * key_line + padded, E(0));
            from += n * step;
            to += columns * key_line;
        }
    }
    /// Products of some rows with those of the block that begins with row `key`.
    void compare(int64_t n, const Rows<E>& rows, int64_t key, int64_t n_keys, const Steps& by_line,
                 E* out) const {
        const int64_t columns = x_.shape()[3];
        const E* const block = room_ + key / key_block * columns * key_line;
        window_loops<E>().multiply(
            {n, n_keys, columns, rows.row(0), rows.at, 1, block, by_line, out, key_line, false});
    }

  private:
    const Tensor& x_;
    Room<E> room_;
};

template <typename E>
struct Attended {
    T query, key, value, mask;  ///< mask may be null
    T out, log_sums;
};

/// The scores of query `query` with keys from `key` on, of which `n_keys` take part in a block.
template <typename E>
ScoreRow<E> score_row(const Shapes& shapes, const T& mask, E* scores, const int64_t (&place)[3], int64_t key,
                      int64_t n_keys) {
    const auto [batch, head, query] = place;
    const int64_t n = shapes.causal ? std::clamp<int64_t>(query + 1 - key, 0, n_keys) : n_keys;
    ScoreRow<E> row{scores, E(shapes.scale), n, rounded(n_keys, window_loops<E>().lanes), nullptr, 0};
    if (!mask) return row;
    const Dims& steps = mask->strides();
    row.mask = mask->data<E>() + batch * steps[0] + head * steps[1] + query * steps[2] + key * steps[3];
    row.mask_step = steps[3];
    return row;
}

// --- forward ---------------------------------------------------------------------------------------------

/// Outputs of blocks of queries of one head.
template <typename E>
class Forward {
  public:
    Forward(const Shapes& shapes, const Attended<E>& all)
        : shapes_(shapes),
          all_(all),
          value_width_(rounded(shapes.value_width, loops_.lanes)),
          by_line_(std::max(query_block, shapes.width), key_line),
          query_(*all.query, query_block, shapes.width),
          value_(*all.value, shapes.keys, value_width_),
          key_(*all.key),
          scores_(query_block * key_line),
          sums_(query_block * value_width_) {}

    void load(int64_t batch, int64_t head) {
        batch_ = batch;
        head_ = head;
        key_.load(batch, head / shapes_.group);
        value_.load(batch, head / shapes_.group, 0, shapes_.keys);
    }

    void run(int64_t first) {
        const int64_t n = std::min(query_block, shapes_.queries - first);
        query_.load(batch_, head_, first, first + n);
        std::fill_n(most_, n, -std::numeric_limits<E>::infinity());
        std::fill_n(total_, n, E(0));
        const int64_t seen = shapes_.seen(first + n);
        if (seen == 0) std::fill_n(static_cast<E*>(sums_), n * value_width_, E(0));
        for (int64_t key = 0; key < seen; key += key_block)
            add_keys(first, n, key, std::min(key_block, seen - key));
        write(first, n);
    }

  private:
    void add_keys(int64_t first, int64_t n, int64_t key, int64_t n_keys) {
        key_.compare(n, query_, key, n_keys, by_line_, scores_);
        for (int64_t i = 0; i < n; ++i) {
            const E shrunk = loops_.soften(score_row<E>(shapes_, all_.mask, scores_ + i * key_line,
                                                        {batch_, head_, first + i}, key, n_keys),
                                           most_[i], total_[i]);
            E* const sums = sums_ + i * value_width_;
            if (shrunk != E(1) && key > 0) loops_.scale(value_width_, sums, shrunk, sums);
        }
        loops_.multiply({n, value_width_, n_keys, scores_, by_line_, 1, value_.row(key), value_.at, sums_,
                         value_width_, key > 0});
    }
    /// A query that sees nothing gets zeros, and a logarithm for which all its weights are zero again.
    void write(int64_t first, int64_t n) {
        const int64_t at = (batch_ * shapes_.heads + head_) * shapes_.queries + first;
        E* out = all_.out->template data<E>() + at * shapes_.value_width;
        E* const log_sums = all_.log_sums->template data<E>() + at;
        for (int64_t i = 0; i < n; ++i, out += shapes_.value_width) {
            const bool empty = total_[i] == E(0);
            log_sums[i] = empty ? std::numeric_limits<E>::infinity() : most_[i] + std::log(total_[i]);
            loops_.scale(shapes_.value_width, sums_ + i * value_width_, empty ? E(0) : E(1) / total_[i], out);
        }
    }

    const Shapes& shapes_;
    const Attended<E>& all_;
    const WindowLoops<E>& loops_ = window_loops<E>();
    const int64_t value_width_;
    const Steps by_line_;
    Rows<E> query_, value_;
    TurnedHead<E> key_;
    const Room<E> scores_, sums_;
    E most_[query_block], total_[query_block];
    int64_t batch_ = 0, head_ = 0;
};

template <typename E>
void attend(const Shapes& shapes, const Attended<E>& all) {
    const int64_t heads = shapes.batch * shapes.heads, blocks = shapes.query_blocks();
    // Few or long heads are cut in parts of their queries.
    const int64_t wanted =
        std::max<int64_t>((4 * thread_count() - 1) / heads, blocks / shapes.short_blocks(2)) + 1;
    const int64_t parts = std::min(wanted, blocks);
    const int64_t least = std::max<int64_t>(1, (1 << 16) / (shapes.queries * shapes.keys + 1));
    parallel_for(heads * parts, least, [&](int64_t begin, int64_t end) {
        Forward<E> forward(shapes, all);
        for (int64_t i = begin; i < end; ++i) {
            const int64_t head = i / parts, part = i % parts;
            forward.load(head / shapes.heads, head % shapes.heads);
            for (int64_t block = part; block < blocks; block += parts) forward.run(block * query_block);
        }
    });
}

// --- backward --------------------------------------------------------------------------------------------

/// How the gradients of keys are split: by shapes alone, so that the result is the same for every number of
/// threads. Each part has some of the blocks of queries of the heads that share one head of keys.
struct Parts {
    int64_t blocks, count;

    explicit Parts(const Shapes& shapes) : blocks(shapes.query_blocks() * shapes.group) {
        constexpr int64_t wanted = 8;
        const int64_t heads = std::max<int64_t>(1, shapes.batch * shapes.key_heads);
        count = std::clamp<int64_t>((wanted - 1) / heads + 1, 1, std::max<int64_t>(1, blocks));
    }
};

template <typename E>
struct Gradients {
    Attended<E> all;
    T grad;
    T query, key, value;  ///< the results
};

/// Gradients through blocks of queries of one head of keys.
template <typename E>
class BackwardPass {
  public:
    BackwardPass(const Shapes& shapes, const Gradients<E>& given)
        : shapes_(shapes),
          given_(given),
          width_(rounded(shapes.width, loops_.lanes)),
          value_width_(rounded(shapes.value_width, loops_.lanes)),
          by_line_(std::max({query_block, shapes.width, shapes.value_width}), key_line),
          by_one_(key_block, 1),
          query_(*given.all.query, query_block, width_),
          grad_(*given.grad, query_block, value_width_),
          key_(*given.all.key, shapes.keys, width_),
          turned_key_(*given.all.key),
          turned_value_(*given.all.value),
          scores_(query_block * key_line),
          slopes_(query_block * key_line),
          query_sums_(query_block * width_) {}

    void load(int64_t batch, int64_t key_head) {
        batch_ = batch;
        key_.load(batch, key_head, 0, shapes_.keys);
        turned_key_.load(batch, key_head);
        turned_value_.load(batch, key_head);
    }

    /// Adds to the gradients of the keys, without their scale, and of the values, and writes that of the
    /// queries.
    void run(int64_t head, int64_t first, E* key_sums, E* value_sums) {
        head_ = head;
        const int64_t n = std::min(query_block, shapes_.queries - first);
        load_queries(first, n);
        const int64_t seen = shapes_.seen(first + n);
        for (int64_t key = 0; key < seen; key += key_block) {
            const int64_t n_keys = std::min(key_block, seen - key);
            weigh(first, n, key, n_keys);
            add_keys(n, key, n_keys, key_sums + key * width_, value_sums + key * value_width_);
        }
        const int64_t at = (batch_ * shapes_.heads + head_) * shapes_.queries + first;
        E* const out = given_.query->template data<E>() + at * shapes_.width;
        for (int64_t i = 0; i < n; ++i)
            loops_.scale(shapes_.width, query_sums_ + i * width_, E(shapes_.scale), out + i * shapes_.width);
    }

  private:
    void load_queries(int64_t first, int64_t n) {
        query_.load(batch_, head_, first, first + n);
        grad_.load(batch_, head_, first, first + n);
        const int64_t at = (batch_ * shapes_.heads + head_) * shapes_.queries + first;
        const E* out = given_.all.out->template data<E>() + at * shapes_.value_width;
        for (int64_t i = 0; i < n; ++i, out += shapes_.value_width) {
            double mean = 0;
            const E* const grad = grad_.row(i);
            for (int64_t j = 0; j < shapes_.value_width; ++j) mean += double(out[j]) * double(grad[j]);
            mean_[i] = E(mean);
        }
        if (shapes_.keys == 0) std::fill_n(static_cast<E*>(query_sums_), n * width_, E(0));
    }
    void weigh(int64_t first, int64_t n, int64_t key, int64_t n_keys) {
        turned_key_.compare(n, query_, key, n_keys, by_line_, scores_);
        turned_value_.compare(n, grad_, key, n_keys, by_line_, slopes_);
        const int64_t at = (batch_ * shapes_.heads + head_) * shapes_.queries + first;
        const E* const log_sum = given_.all.log_sums->template data<E>() + at;
        for (int64_t i = 0; i < n; ++i)
            loops_.weigh(score_row<E>(shapes_, given_.all.mask, scores_ + i * key_line,
                                      {batch_, head_, first + i}, key, n_keys),
                         log_sum[i], mean_[i], slopes_ + i * key_line);
    }
    void add_keys(int64_t n, int64_t key, int64_t n_keys, E* key_sums, E* value_sums) {
        loops_.multiply({n_keys, value_width_, n, scores_, by_one_, key_line, grad_.row(0), grad_.at,
                         value_sums, value_width_, true});
        loops_.multiply({n_keys, width_, n, slopes_, by_one_, key_line, query_.row(0), query_.at, key_sums,
                         width_, true});
        loops_.multiply(
            {n, width_, n_keys, slopes_, by_line_, 1, key_.row(key), key_.at, query_sums_, width_, key > 0});
    }

    const Shapes& shapes_;
    const Gradients<E>& given_;
    const WindowLoops<E>& loops_ = window_loops<E>();
    const int64_t width_, value_width_;
    const Steps by_line_, by_one_;
    Rows<E> query_, grad_, key_;
    TurnedHead<E> turned_key_, turned_value_;
    const Room<E> scores_, slopes_, query_sums_;
    E mean_[query_block];
    int64_t batch_ = 0, head_ = 0;
};

/// Sums of the parts, without the padding of rows, times a factor.
template <typename E>
void join_parts(const Parts& parts, int64_t part_step, E* sums, int64_t rows, int64_t width, E factor,
                const T& out, int64_t head) {
    const int64_t out_width = out->shape()[3];
    E* const to = out->data<E>() + head * rows * out_width;
    for (int64_t i = 0; i < rows; ++i) {
        E* const sum = sums + i * width;
        for (int64_t p = 1; p < parts.count; ++p)
            for (int64_t j = 0; j < out_width; ++j) sum[j] += sum[p * part_step + j];
        window_loops<E>().scale(out_width, sum, factor, to + i * out_width);
    }
}

template <typename E>
void attend_backward(const Shapes& shapes, const Gradients<E>& given) {
    const Parts parts(shapes);
    const int64_t heads = shapes.batch * shapes.key_heads, blocks = shapes.query_blocks();
    const int64_t lanes = window_loops<E>().lanes;
    const int64_t width = rounded(shapes.width, lanes), value_width = rounded(shapes.value_width, lanes);
    const int64_t each = shapes.keys * (width + value_width);
    const Room<E> sums(heads * parts.count * each);
    const int64_t least = std::max<int64_t>(1, (1 << 15) / (shapes.queries * shapes.keys + 1));
    const int64_t step = shapes.short_blocks(5) * parts.count;
    for (int64_t round = 0; round == 0 || round < parts.blocks; round += step)
        parallel_for(heads * parts.count, least, [&](int64_t begin, int64_t end) {
            BackwardPass<E> pass(shapes, given);
            for (int64_t unit = begin; unit < end; ++unit) {
                const int64_t head = unit / parts.count, key_head = head % shapes.key_heads;
                E* const to = sums + unit * each;
                if (round == 0) std::fill_n(to, each, E(0));
                pass.load(head / shapes.key_heads, key_head);
                for (int64_t i = round + unit % parts.count; i < std::min(round + step, parts.blocks);
                     i += parts.count)
                    pass.run(key_head * shapes.group + i / blocks, i % blocks * query_block, to,
                             to + shapes.keys * width);
            }
        });
    parallel_for(heads, std::max<int64_t>(1, grain / (each + 1)), [&](int64_t begin, int64_t end) {
        for (int64_t head = begin; head < end; ++head) {
            E* const from = sums + head * parts.count * each;
            join_parts(parts, each, from, shapes.keys, width, E(shapes.scale), given.key, head);
            join_parts(parts, each, from + shapes.keys * width, shapes.keys, value_width, E(1), given.value,
                       head);
        }
    });
}

// --- the table -------------------------------------------------------------------------------------------

/// The tensor in the type it is computed in, its last axis side by side.
T prepared(const T& x) {
    const T y = is(x->dtype(), halves) ? cast(x, DType::f32) : x;
    return y->shape().back() == 1 || y->strides().back() == 1 ? y : copy(y);
}

/// A mask as it is added to the scores of all heads, or null.
T prepared_mask(const Call& call, int i) {
    if (int(call.in.size()) <= i) return T();
    const Tensor &query = call.input(0), &key = call.input(1);
    const Dims& q = query.shape();
    const T& mask = call.in[i];
    return expand(is(mask->dtype(), halves) ? cast(mask, DType::f32) : mask,
                  {q[0], q[1], q[2], key.shape()[2]});
}

/// Tensor in the type that a result is computed in, where it is no half itself.
T computed(const T& out) { return is(out->dtype(), halves) ? Tensor::empty(out->shape(), DType::f32) : out; }

void check_inputs(const Call& call, int mask) {
    const Dims &q = call.input(0).shape(), &k = call.input(1).shape(), &v = call.input(2).shape();
    for (const T& x : call.in)
        if (x->dtype() != call.input().dtype() &&
            !(x->dtype() == DType::f32 && is(call.input().dtype(), halves)))
            fail(Kind::dtype, "[", call.op.name, "] types ", name_of(call.input().dtype()), " and ",
                 name_of(x->dtype()), "; convert one with .to()");
    require_shape(q.size() == 4 && k.size() == 4 && v.size() == 4, "[", call.op.name, "] shapes ", q.words(),
                  ", ", k.words(), " and ", v.words(), "; give (batch, heads, length, width)");
    require(q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && k[2] == v[2] && q[3] == k[3] && k[1] > 0 &&
                q[1] % k[1] == 0,
            "[", call.op.name, "] query ", q.words(), ", key ", k.words(), " and value ", v.words(),
            " do not fit");
    if (int(call.in.size()) > mask)
        broadcast_layout(call.input(mask), {q[0], q[1], q[2], k[2]}, call.op.name);
}

void attention_rule(Call& call) {
    check_inputs(call, 3);
    const Dims &q = call.input(0).shape(), &v = call.input(2).shape();
    const DType dtype = call.input().dtype();
    call.make({q[0], q[1], q[2], v[3]}, dtype);
    call.make({q[0], q[1], q[2]}, is(dtype, halves) ? DType::f32 : dtype, 1);
}

void attention_kernel(Call& call) {
    if (call.out[1]->size() == 0) return;
    const Shapes shapes(call.input(0), call.input(1), call.input(2), call.params);
    const T out = computed(call.out[0]);
    const auto run_in = [&]<typename E>(Tag<E>) {
        attend<E>(shapes, {prepared(call.in[0]), prepared(call.in[1]), prepared(call.in[2]),
                           prepared_mask(call, 3), out, call.out[1]});
    };
    out->dtype() == DType::f64 ? run_in(Tag<double>()) : run_in(Tag<float>());
    if (out != call.out[0]) copy_elements(*out, *call.out[0]);
}

/// Of a head: keys and values padded or transposed in blocks, and `scores` blocks of scores.
int64_t thread_elements(const Shapes& shapes, int64_t scores) {
    const int64_t width = rounded(shapes.width, 16) + rounded(shapes.value_width, 16);
    return rounded(shapes.keys, key_block) / key_block * key_line * width + shapes.keys * width +
           query_block * (scores * key_line + 2 * width) + 8 * (key_line + width);
}

int64_t attention_workspace(const Call& call, int64_t scores, int64_t sums) {
    const Shapes shapes(call.input(0), call.input(1), call.input(2), call.params);
    const int64_t each = std::max<int64_t>(4, size_of(call.input().dtype()));
    return tensor_bytes(call) + (sums + thread_count() * thread_elements(shapes, scores)) * each;
}

Cost attention_cost(const Call& call, double products) {
    const Dims &q = call.input(0).shape(), &k = call.input(1).shape(), &v = call.input(2).shape();
    const double pairs = double(q[0] * q[1] * q[2]) * double(k[2]) * (call.params.flag ? 0.5 : 1);
    double bytes = 0;
    for (const T& x : call.in) bytes += double(x->size() * size_of(x->dtype()));
    return {products * pairs * double(q[3] + v[3]) + 15 * pairs, bytes};
}

extern const Op& attention_backward_op;

void attention_vjp(Backward& c) {
    if (!c.wants(0) && !c.wants(1) && !c.wants(2)) return;
    std::vector<T> inputs{c.input(0), c.input(1), c.input(2), c.grad(), c.output(0), c.output(1)};
    if (c.inputs() == 4) inputs.push_back(c.input(3));
    const std::array<T, 3> grads = apply_all(attention_backward_op, inputs, c.params());
    for (int i = 0; i < 3; ++i) c.give(i, grads[i]);
}

/// Outputs: the result, and for each query the logarithm of the sum of its e^score, which has no gradient.
const Op& attention_op =
    enter({.name = "attention",
           .family = Family::fused,
           .arity = -1,
           .outputs = 2,
           .types = floats,
           .rule = attention_rule,
           .cpu = attention_kernel,
           .cuda = cuda::attention,
           .vjp = attention_vjp,
           .saves = in0 | in1 | in2 | in3 | out0 | out1,
           .autocast = Precision::lower,
           .cost = [](const Call& call) { return attention_cost(call, 2); },
           .workspace = [](const Call& call) { return attention_workspace(call, 1, 0); }});

void backward_rule(Call& call) {
    check_inputs(call, 6);
    for (int i = 0; i < 3; ++i) call.make(call.input(i).shape(), call.input(i).dtype(), i);
}

void backward_kernel(Call& call) {
    const Shapes shapes(call.input(0), call.input(1), call.input(2), call.params);
    T outs[3];
    for (int i = 0; i < 3; ++i) outs[i] = computed(call.out[i]);
    const auto run_in = [&]<typename E>(Tag<E>) {
        attend_backward<E>(shapes, {{prepared(call.in[0]), prepared(call.in[1]), prepared(call.in[2]),
                                     prepared_mask(call, 6), contiguous(prepared(call.in[4])), call.in[5]},
                                    prepared(call.in[3]),
                                    outs[0],
                                    outs[1],
                                    outs[2]});
    };
    outs[0]->dtype() == DType::f64 ? run_in(Tag<double>()) : run_in(Tag<float>());
    for (int i = 0; i < 3; ++i)
        if (outs[i] != call.out[i]) copy_elements(*outs[i], *call.out[i]);
}

int64_t backward_workspace(const Call& call) {
    const Shapes shapes(call.input(0), call.input(1), call.input(2), call.params);
    const int64_t width = rounded(shapes.width, 16) + rounded(shapes.value_width, 16);
    return attention_workspace(call, 2,
                               shapes.batch * shapes.key_heads * Parts(shapes).count * shapes.keys * width);
}

T last_sum(const T& x) { return sum(x, {x->dims() - 1}, true); }

/// Weights of all keys, in operations.
T weights_of(const T& query, const T& key, const T& mask, const Params& params) {
    T scores = matmul(query, mt(key)) * params.x;
    const T hidden = like(scores, -std::numeric_limits<double>::infinity());
    if (mask) scores = scores + mask;
    if (params.flag) scores = where(lower_mask(query->shape()[2], key->shape()[2], 0), scores, hidden);
    const T most = max(scores, {scores->dims() - 1}, true)->detach();
    const T weights = exp(scores - where(equal(most, hidden), like(most, 0), most));
    const T total = last_sum(weights);
    return weights / where(equal(total, like(total, 0)), like(total, 1), total);
}

/// Heads of keys once for each head of queries, and the sum that is its gradient.
T repeated(const T& x, int64_t group) {
    const Dims& s = x->shape();
    return group == 1
               ? x
               : reshape(expand(unsqueeze(x, 2), {s[0], s[1], group, s[2], s[3]}), {s[0], -1, s[2], s[3]});
}
T gathered(const T& x, int64_t group) {
    const Dims& s = x->shape();
    return group == 1 ? x : sum(reshape(x, {s[0], s[1] / group, group, s[2], s[3]}), {2}, false);
}

/// With W the gradient of the slopes S = P (D - rowsum(P D)), D = g vᵀ, for the gradients a, b, c of the
/// gradients of query, key and value: W = scale (a kᵀ + q bᵀ), and P also goes into the gradient of v.
void backward_vjp(Backward& c) {
    const int64_t group = c.shape(0)[1] / c.shape(1)[1];
    const T q = c.input(0), k = repeated(c.input(1), group), v = repeated(c.input(2), group), g = c.input(3);
    const T a = c.grad(0), b = repeated(c.grad(1), group), e = repeated(c.grad(2), group);
    const double scale = c.params().x;
    const T p = weights_of(q, k, c.inputs() == 7 ? c.input(6) : T(), c.params());
    const T d = matmul(g, mt(v));
    const T centred = d - last_sum(p * d);
    const T slopes = p * centred;
    const T w = (matmul(a, mt(k)) + matmul(q, mt(b))) * scale;
    const T w_sum = last_sum(w * p);
    const T to_d = p * (w - w_sum);
    const T to_p = w * centred - w_sum * d + matmul(g, mt(e));
    const T to_scores = p * (to_p - last_sum(p * to_p)) * scale;
    c.give(0, [&] { return matmul(to_scores, k) + matmul(slopes, b) * scale; });
    c.give(1, [&] { return gathered(matmul(mt(to_scores), q) + matmul(mt(slopes), a) * scale, group); });
    c.give(2, [&] { return gathered(matmul(mt(to_d), g), group); });
    c.give(3, [&] { return matmul(to_d, v) + matmul(p, e); });
}

/// Inputs: query, key, value, the gradient of the result, the result and its logarithms, perhaps a mask.
const Op& attention_backward_op = enter({.name = "attention_backward",
                                         .family = Family::fused,
                                         .arity = -1,
                                         .outputs = 3,
                                         .types = floats,
                                         .rule = backward_rule,
                                         .cpu = backward_kernel,
                                         .cuda = cuda::attention_backward,
                                         .vjp = backward_vjp,
                                         .saves = in0 | in1 | in2 | in3 | 1 << 6,
                                         .cost = [](const Call& call) { return attention_cost(call, 5); },
                                         .workspace = backward_workspace});

std::vector<T> with_mask(std::vector<T> inputs, const T& mask) {
    if (mask) inputs.push_back(mask);
    return inputs;
}

Params attention_params(double scale, bool causal) {
    Params params = flagged(causal);
    params.x = scale;
    return params;
}

}  // namespace

std::array<T, 3> attention(const T& query, const T& key, const T& value, const T& mask, double scale,
                           bool causal) {
    return apply_all(attention_op, with_mask({query, key, value}, mask), attention_params(scale, causal));
}

std::array<T, 3> attention_backward(const std::vector<T>& inputs, const T& mask, double scale, bool causal) {
    return apply_all(attention_backward_op, with_mask(inputs, mask), attention_params(scale, causal));
}

}  // namespace accelera::tensora
