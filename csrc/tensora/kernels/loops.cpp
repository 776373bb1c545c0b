// Choice of the loops for the instruction set of this machine, and the loops that need only the baseline.
#include "tensora/kernels/loops.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "tensora/core/threads.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"

namespace accelera::tensora {

/// What each file of loops has in the name space of an instruction set.
#define LOOPS_FOR(isa)                        \
    namespace isa {                           \
    void fill_rows(LoopRow* rows);            \
    void fill_reducers(Reducers& table);      \
    template <typename E>                     \
    void fill_windows(WindowLoops<E>& loops); \
    void fill_row_loops(RowLoops* loops);     \
    }
LOOPS_FOR(base)
#ifdef TENSORA_X86
LOOPS_FOR(v3)
LOOPS_FOR(v4)
#endif
#undef LOOPS_FOR

namespace {

#ifdef TENSORA_X86
/// 2, 3 or 4, as in x86-64-v2. TENSORA_LEVEL lowers it, for tests.
int choose_level() {
    int level = 2;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        level = 3;
    if (level == 3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd"))
        level = 4;
    if (const char* wish = std::getenv("TENSORA_LEVEL"); wish && std::atoi(wish) >= 2)
        level = std::min(level, std::atoi(wish));
    return level;
}

int level() {
    static const int one = choose_level();
    return one;
}
#endif

constexpr const char* formula_names[] = {
#define FORMULA(name, ...) #name,
#include "tensora/kernels/formulas.def"
#undef FORMULA
};
constexpr size_t n_formulas = sizeof formula_names / sizeof *formula_names;

std::vector<LoopRow> all_rows() {
    std::vector<LoopRow> rows(n_formulas);
    base::fill_rows(rows.data());
#ifdef TENSORA_X86
    if (level() >= 3) v3::fill_rows(rows.data());
    if (level() >= 4) v4::fill_rows(rows.data());
#endif
    return rows;
}

template <typename From, typename To>
void cast_elements(int64_t n, char* out_bytes, int64_t out_step, const char* const* in,
                   const int64_t* steps) {
    if (out_step == sizeof(To) && steps[0] == sizeof(From)) {
        To* __restrict out = reinterpret_cast<To*>(out_bytes);
        const From* x = reinterpret_cast<const From*>(in[0]);
        if constexpr (std::is_same_v<From, To>)
            std::memcpy(out, x, size_t(n) * sizeof(To));
        else
            for (int64_t i = 0; i < n; ++i) out[i] = cast_value<To>(x[i]);
        return;
    }
    for (int64_t i = 0; i < n; ++i)
        *reinterpret_cast<To*>(out_bytes + i * out_step) =
            cast_value<To>(*reinterpret_cast<const From*>(in[0] + i * steps[0]));
}

template <typename E>
void where_elements(int64_t n, char* out, int64_t out_step, const char* const* in, const int64_t* steps) {
    for (int64_t i = 0; i < n; ++i) {
        const bool first = *reinterpret_cast<const Bool*>(in[0] + i * steps[0]);
        const char* from = first ? in[1] + i * steps[1] : in[2] + i * steps[2];
        *reinterpret_cast<E*>(out + i * out_step) = *reinterpret_cast<const E*>(from);
    }
}

}  // namespace

const LoopRow* loops_named(std::string_view name) {
    static const auto* const rows = new std::vector<LoopRow>(all_rows());
    for (size_t i = 0; i < n_formulas; ++i)
        if (name == formula_names[i]) return &(*rows)[i];
    return nullptr;
}

const Reducers& reducers() {
    static const Reducers* const table = [] {
        auto* made = new Reducers;
        base::fill_reducers(*made);
#ifdef TENSORA_X86
        if (level() >= 3) v3::fill_reducers(*made);
        if (level() >= 4) v4::fill_reducers(*made);
#endif
        return made;
    }();
    return *table;
}

template <typename E>
const WindowLoops<E>& window_loops() {
    static const WindowLoops<E> one = [] {
        WindowLoops<E> made;
        base::fill_windows(made);
#ifdef TENSORA_X86
        if (level() >= 3) v3::fill_windows(made);
        if (level() >= 4) v4::fill_windows(made);
#endif
        return made;
    }();
    return one;
}
template const WindowLoops<float>& window_loops();
template const WindowLoops<double>& window_loops();
const RowLoops& row_loops(DType dtype) {
    static const RowLoops* const loops = [] {
        auto* made = new RowLoops[4];
        base::fill_row_loops(made);
#ifdef TENSORA_X86
        if (level() >= 3) v3::fill_row_loops(made);
        if (level() >= 4) v4::fill_row_loops(made);
#endif
        return made;
    }();
    return loops[int(dtype) - int(DType::f16)];
}

Loop cast_loop(DType from, DType to) {
    return visit(from, [&]<typename From>(Tag<From>) -> Loop {
        return visit(to, []<typename To>(Tag<To>) -> Loop { return cast_elements<From, To>; });
    });
}

Loop where_loop(DType dtype) {
    return visit(dtype, []<typename E>(Tag<E>) -> Loop { return where_elements<E>; });
}

std::string_view instruction_set() {
#ifdef TENSORA_X86
    return level() == 4 ? "x86-64-v4" : level() == 3 ? "x86-64-v3" : "x86-64-v2";
#else
    return "baseline";
#endif
}

// --- lines ----------------------------------------------------------------------------------------------

void Lines::add(char* data, const Dims& strides) {
    data_[n_] = data;
    strides_[n_++] = strides;
}

void Lines::add(const Tensor& tensor) {
    const int64_t each = size_of(tensor.dtype());
    const int skip = shape_.size() - tensor.dims();
    Dims strides = Dims::filled(shape_.size(), 0);
    for (int i = 0; i < tensor.dims(); ++i)
        if (tensor.shape()[i] != 1) strides[i + skip] = tensor.strides()[i] * each;
    add(tensor.bytes(), strides);
}

void Lines::join_axes() {
    Dims shape;
    std::array<Dims, most> strides;
    for (int i = 0; i < shape_.size(); ++i) {
        if (shape_[i] == 1) continue;
        bool joins = !shape.empty();
        for (int k = 0; k < n_ && joins; ++k) joins = strides[k].back() == strides_[k][i] * shape_[i];
        if (joins) {
            shape.back() *= shape_[i];
            for (int k = 0; k < n_; ++k) strides[k].back() = strides_[k][i];
        } else {
            shape.push_back(shape_[i]);
            for (int k = 0; k < n_; ++k) strides[k].push_back(strides_[k][i]);
        }
    }
    if (shape.empty()) {
        shape.push_back(1);
        for (int k = 0; k < n_; ++k) strides[k].push_back(0);
    }
    shape_ = shape;
    for (int k = 0; k < n_; ++k) strides_[k] = strides[k];
}

void Lines::run_one(Loop loop, int64_t begin, int64_t end) const {
    std::array<const char*, most> in;
    std::array<int64_t, most> steps;
    for (int k = 1; k < n_; ++k) {
        steps[k - 1] = strides_[k][0];
        in[k - 1] = data_[k] + begin * strides_[k][0];
    }
    loop(end - begin, data_[0] + begin * strides_[0][0], strides_[0][0], in.data(), steps.data());
}

void Lines::run_lines(Loop loop, int64_t begin, int64_t end) const {
    const int last = shape_.size() - 1;
    Dims index = Dims::filled(last, 0);
    std::array<char*, most> at;
    std::array<const char*, most> in;
    std::array<int64_t, most> steps;
    int64_t rest = begin;
    for (int k = 0; k < n_; ++k) at[k] = data_[k];
    for (int i = last - 1; i >= 0; --i) {
        index[i] = rest % shape_[i];
        rest /= shape_[i];
        for (int k = 0; k < n_; ++k) at[k] += index[i] * strides_[k][i];
    }
    for (int k = 1; k < n_; ++k) steps[k - 1] = strides_[k][last];
    for (int64_t line = begin; line < end; ++line) {
        for (int k = 1; k < n_; ++k) in[k - 1] = at[k];
        loop(shape_[last], at[0], strides_[0][last], in.data(), steps.data());
        for (int i = last - 1; i >= 0; --i) {
            for (int k = 0; k < n_; ++k) at[k] += strides_[k][i];
            if (++index[i] < shape_[i]) break;
            for (int k = 0; k < n_; ++k) at[k] -= index[i] * strides_[k][i];
            index[i] = 0;
        }
    }
}

void Lines::run(Loop loop) {
    const int64_t size = shape_.product();
    if (size == 0) return;
    join_axes();
    if (shape_.size() == 1) {
        parallel_for(size, grain, [&](int64_t begin, int64_t end) { run_one(loop, begin, end); });
        return;
    }
    const int64_t length = shape_.back();
    parallel_for(size / length, std::max<int64_t>(1, grain / length),
                 [&](int64_t begin, int64_t end) { run_lines(loop, begin, end); });
}

void copy_elements(const Tensor& from, const Tensor& to) {
    if (!to.device().is_cpu()) return cuda::copy_on_device(from, to);
    if (from.dtype() == to.dtype() && from.contiguous() && to.contiguous() && from.shape() == to.shape() &&
        from.size() < grain) {
        std::memcpy(to.bytes(), from.bytes(), size_t(from.size() * size_of(from.dtype())));
        return;
    }
    Lines lines(to.shape());
    lines.add(to);
    lines.add(from);
    lines.run(cast_loop(from.dtype(), to.dtype()));
}

void fill_zeros(const Tensor& out) {
    if (!out.device().is_cpu()) return cuda::fill_on_device(out);
    std::memset(out.bytes(), 0, size_t(out.size() * size_of(out.dtype())));
}

}  // namespace accelera::tensora
