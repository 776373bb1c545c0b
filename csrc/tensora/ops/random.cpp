// Entries of the operations that draw random numbers.
#include <cmath>
#include <cstring>

#include "tensora/base/interrupt.h"
#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/functions.h"

namespace accelera::tensora {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * counter[0], b = uint64_t(0xCD9E8D57u) * counter[2];
        counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b),
                   uint32_t(a >> 32) ^ counter[3] ^ key[1], uint32_t(a)};
        key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    }
    return counter;
}

namespace {

/// Four random words. The counter is the number of the block (below 2^48), the attempt, and the draw.
struct Blocks {
    Draw draw;

    std::array<uint32_t, 4> words(int64_t block, uint32_t attempt = 0) const {
        return philox({uint32_t(block), uint32_t(uint64_t(block) >> 32) | attempt << 16,
                       uint32_t(draw.number), uint32_t(draw.number >> 32)},
                      {uint32_t(draw.seed), uint32_t(draw.seed >> 32)});
    }
    /// Two words of 64 bits.
    std::array<uint64_t, 2> long_words(int64_t block, uint32_t attempt = 0) const {
        const auto four = words(block, attempt);
        return {four[0] | uint64_t(four[1]) << 32, four[2] | uint64_t(four[3]) << 32};
    }
};

Params drawing(const Draw& draw, const Dims& shape, DType dtype) {
    Params params;
    params.a = shape;
    params.b = {int64_t(draw.seed), int64_t(draw.number)};
    params.dtype = dtype;
    return params;
}

Blocks blocks_of(const Call& call) { return {{uint64_t(call.params.b[0]), uint64_t(call.params.b[1])}}; }

void creation_rule(Call& call) {
    for (int64_t extent : call.params.a)
        require_shape(extent >= 0, "[", call.op.name, "] a shape of ", call.params.a.words(),
                      "; extents must not be negative");
    call.make(call.params.a, call.params.dtype);
}

/// Call `fill(block, place, n)` for each block of `each` elements, on all threads.
template <typename Fill>
void fill_blocks(int64_t size, int64_t each, Fill fill) {
    parallel_for((size + each - 1) / each, grain / 16, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block)
            fill(block, block * each, std::min(each, size - block * each));
    });
}

/// In [0, 1), with as many bits as the type's mantissa has.
template <typename E>
Computed<E> unit(uint32_t word) {
    constexpr int bits = std::is_same_v<E, Half> ? 11 : std::is_same_v<E, BFloat> ? 8 : 24;
    return float(word >> (32 - bits)) * (1.0f / float(1 << bits));
}
double long_unit(uint64_t word) { return double(word >> 11) * 0x1p-53; }

/// The largest number of the type below `high`.
template <typename E>
E below(E high) {
    if constexpr (is_half<E>) {
        if (float(high) == 0) return E(-0x1p-14f);
        high.bits = uint16_t(high.bits + (float(high) > 0 ? -1 : 1));
        return high;
    } else {
        return std::nextafter(high, -std::numeric_limits<E>::infinity());
    }
}

/// `n` of the elements of a block, from `next(k)` in [0, 1).
template <typename E, typename Next>
void spread(E* out, int64_t n, Computed<E> low, Computed<E> high, E last, Next next) {
    using C = Computed<E>;
    for (int64_t k = 0; k < n; ++k) {
        const E value = E(low + (high - low) * C(next(k)));
        out[k] = C(value) < high || !(low < high) ? value : last;
    }
}

void uniform_kernel(Call& call) {
    const Blocks blocks = blocks_of(call);
    const double low = call.params.x, high = call.params.y;
    visit(call.params.dtype, [&]<typename E>(Tag<E>) {
        if constexpr (is_half<E> || is_real<E>) {
            using C = Computed<E>;
            E* const out = call.out[0]->data<E>();
            const E last = below(E(C(high)));
            if constexpr (std::is_same_v<E, double>)
                fill_blocks(call.out[0]->size(), 2, [&](int64_t block, int64_t place, int64_t n) {
                    const auto words = blocks.long_words(block);
                    spread(out + place, n, low, high, last,
                           [&](int64_t k) { return long_unit(words[size_t(k)]); });
                });
            else
                fill_blocks(call.out[0]->size(), 4, [&](int64_t block, int64_t place, int64_t n) {
                    const auto words = blocks.words(block);
                    spread(out + place, n, C(low), C(high), last,
                           [&](int64_t k) { return unit<E>(words[size_t(k)]); });
                });
        }
    });
}

/// Two independent normal numbers from two words (G. Box and M. Muller 1958). `first` is in (0, 1].
template <typename R>
std::array<R, 2> box_muller(R first, R second) {
    const R radius = std::sqrt(R(-2) * std::log(first)), angle = R(2 * M_PI) * second;
    return {radius * std::cos(angle), radius * std::sin(angle)};
}

std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
    return box_muller((float(a >> 8) + float((a & 0xff) + 1) * 0x1p-8f) * 0x1p-24f, float(b >> 8) * 0x1p-24f);
}
std::array<double, 2> normal_pair(uint64_t a, uint64_t b) {
    return box_muller(double((a >> 11) + 1) * 0x1p-53, long_unit(b));
}

void normal_kernel(Call& call) {
    const Blocks blocks = blocks_of(call);
    visit(call.params.dtype, [&]<typename E>(Tag<E>) {
        if constexpr (is_half<E> || is_real<E>) {
            using C = Computed<E>;
            E* const out = call.out[0]->data<E>();
            const C mean = C(call.params.x), deviation = C(call.params.y);
            constexpr int64_t each = std::is_same_v<E, double> ? 2 : 4;
            fill_blocks(call.out[0]->size(), each, [&](int64_t block, int64_t place, int64_t n) {
                C normals[each];
                if constexpr (each == 2) {
                    const auto words = blocks.long_words(block);
                    const auto pair = normal_pair(words[0], words[1]);
                    std::copy_n(pair.begin(), 2, normals);
                } else {
                    const auto words = blocks.words(block);
                    for (size_t half : {0, 2}) {
                        const auto pair = normal_pair(words[half], words[half + 1]);
                        std::copy_n(pair.begin(), 2, normals + half);
                    }
                }
                for (int64_t k = 0; k < n; ++k) out[place + k] = E(mean + deviation * normals[k]);
            });
        }
    });
}

/// Below `extent`, without bias: D. Lemire, "Fast random integer generation in an interval" (2019). A word
/// that would favour some results is replaced by that of the next attempt.
template <typename Word, typename Wide, typename Words>
Word below_extent(Word extent, Words word) {
    constexpr int bits = 8 * sizeof(Word);
    for (uint32_t attempt = 0;; ++attempt) {
        const Wide product = Wide(word(attempt)) * extent;
        // The division is only needed for the few words that may be too many.
        if (Word(product) >= extent || Word(product) >= Word(-extent) % extent) return Word(product >> bits);
    }
}

/// Integer k of a block.
uint64_t integer_of(const Blocks& blocks, const std::array<uint32_t, 4>& words, int64_t block, size_t k,
                    uint32_t extent) {
    return below_extent<uint32_t, uint64_t>(
        extent, [&](uint32_t attempt) { return attempt ? blocks.words(block, attempt)[k] : words[k]; });
}
uint64_t integer_of(const Blocks& blocks, const std::array<uint64_t, 2>& words, int64_t block, size_t k,
                    uint64_t extent) {
    if (extent == 0) return words[k];
    return below_extent<uint64_t, unsigned __int128>(
        extent, [&](uint32_t attempt) { return attempt ? blocks.long_words(block, attempt)[k] : words[k]; });
}

void integers_kernel(Call& call) {
    const Blocks blocks = blocks_of(call);
    const uint64_t low = uint64_t(call.params.c[0]), extent = uint64_t(call.params.c[1]);
    visit(call.params.dtype, [&]<typename E>(Tag<E>) {
        if constexpr (is_integer<E>) {
            E* const out = call.out[0]->data<E>();
            const auto fill = [&](auto words, int64_t block, int64_t place, int64_t n, auto bound) {
                for (int64_t k = 0; k < n; ++k)
                    out[place + k] = E(low + integer_of(blocks, words, block, size_t(k), bound));
            };
            if (extent && extent <= UINT32_MAX)
                fill_blocks(call.out[0]->size(), 4, [&](int64_t block, int64_t place, int64_t n) {
                    fill(blocks.words(block), block, place, n, uint32_t(extent));
                });
            else
                fill_blocks(call.out[0]->size(), 2, [&](int64_t block, int64_t place, int64_t n) {
                    fill(blocks.long_words(block), block, place, n, extent);
                });
        }
    });
}

/// R. Fisher and F. Yates's shuffle, in D. Knuth's order: one thread, since each exchange follows from the
/// last.
void permutation_kernel(Call& call) {
    const Blocks blocks = blocks_of(call);
    int64_t* const out = call.out[0]->data<int64_t>();
    const int64_t n = call.out[0]->size();
    for (int64_t i = 0; i < n; ++i) {
        if (i % (1 << 20) == 0) check_interrupt();
        const auto words = blocks.long_words(i);
        const auto place = int64_t(integer_of(blocks, words, i, 0, uint64_t(i + 1)));
        out[i] = out[place];
        out[place] = i;
    }
}

void dropout_rule(Call& call) { call.make(call.input().shape(), call.input().dtype()); }

/// An element stays where `random_uniform` has at least `x` in float32, and is divided by what stays on
/// average.
void dropout_kernel(Call& call) {
    const Blocks blocks = blocks_of(call);
    const T input = contiguous(call.in[0]);
    const double p = call.params.x;
    visit(input->dtype(), [&]<typename E>(Tag<E>) {
        if constexpr (is_half<E> || is_real<E>) {
            using C = Computed<E>;
            const E* const from = input->data<E>();
            E* const to = call.out[0]->data<E>();
            const C kept = C(E(C(1) / C(E(C(1 - p))))), gone = 0;
            const auto least = float(p);
            fill_blocks(input->size(), 4, [&](int64_t block, int64_t place, int64_t n) {
                const auto words = blocks.words(block);
                for (int64_t k = 0; k < n; ++k)
                    to[place + k] =
                        E(C(from[place + k]) * (unit<float>(words[size_t(k)]) >= least ? kept : gone));
            });
        }
    });
}

/// The numbers are drawn again: nothing is saved.
void dropout_vjp(Backward& call);

/// x: probability of zero; b: seed and number of the draw.
const Op& dropout_op = enter({.name = "random_dropout",
                              .family = Family::creation,
                              .arity = 1,
                              .types = floats,
                              .rule = dropout_rule,
                              .cpu = dropout_kernel,
                              .vjp = dropout_vjp,
                              .flops_per_element = 12});

void dropout_vjp(Backward& call) {
    call.give(0, [&] { return run(dropout_op, call.params(), call.grad()); });
}

/// a: shape; b: seed and number of the draw; x, y: low and high, or mean and deviation; c: low and extent.
const Op& uniform_op = enter({.name = "random_uniform",
                              .family = Family::creation,
                              .arity = 0,
                              .rule = creation_rule,
                              .cpu = uniform_kernel,
                              .flops_per_element = 10});
const Op& normal_op = enter({.name = "random_normal",
                             .family = Family::creation,
                             .arity = 0,
                             .rule = creation_rule,
                             .cpu = normal_kernel,
                             .flops_per_element = 40});
const Op& integers_op = enter({.name = "random_integers",
                               .family = Family::creation,
                               .arity = 0,
                               .rule = creation_rule,
                               .cpu = integers_kernel,
                               .flops_per_element = 12});
const Op& permutation_op = enter({.name = "random_permutation",
                                  .family = Family::creation,
                                  .arity = 0,
                                  .rule = creation_rule,
                                  .cpu = permutation_kernel,
                                  .flops_per_element = 40});

void check_type(const char* op, DType dtype, uint8_t classes, const char* wanted) {
    if (!is(dtype, classes))
        fail(Kind::dtype, "[", op, "] elements of type ", name_of(dtype), "; give ", wanted);
}

}  // namespace

T random_uniform(const Draw& draw, const Dims& shape, DType dtype, double low, double high) {
    check_type("uniform", dtype, floats, "a real floating-point type");
    require(low <= high && std::isfinite(high - low), "[uniform] low ", low, " and high ", high,
            "; give finite numbers, the smaller one first");
    Params params = drawing(draw, shape, dtype);
    params.x = low;
    params.y = high;
    return apply(uniform_op, {}, params);
}

T random_normal(const Draw& draw, const Dims& shape, DType dtype, double mean, double deviation) {
    check_type("normal", dtype, floats, "a real floating-point type");
    require(deviation >= 0, "[normal] a standard deviation of ", deviation,
            "; give one that is not negative");
    Params params = drawing(draw, shape, dtype);
    params.x = mean;
    params.y = deviation;
    return apply(normal_op, {}, params);
}

T random_integers(const Draw& draw, const Dims& shape, DType dtype, int64_t low, uint64_t extent) {
    check_type("integers", dtype, integers, "an integer type");
    Params params = drawing(draw, shape, dtype);
    params.c = {low, int64_t(extent)};
    return apply(integers_op, {}, params);
}

T random_dropout(const Draw& draw, const T& x, double p) {
    require(p >= 0 && p < 1, "[dropout] p=", p, "; give a probability below 1");
    Params params = drawing(draw, {}, x->dtype());
    params.x = p;
    return run(dropout_op, params, x);
}

T random_permutation(const Draw& draw, int64_t n) {
    return apply(permutation_op, {}, drawing(draw, {n}, DType::i64));
}

}  // namespace accelera::tensora
