// Choice of the loops for the instruction set of this machine, and the loops that need only the baseline.
#include "tensora/kernels/loops.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "tensora/kernels/scalar.h"

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
    // NOLINTNEXTLINE(concurrency-mt-unsafe): read once, before the first loop runs
    const char* const variable = std::getenv("TENSORA_LEVEL");
    const long lowered = variable ? std::strtol(variable, nullptr, 10) : 0;
    return lowered >= 2 ? int(std::min<long>(level, lowered)) : level;
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

}  // namespace accelera::tensora
