#pragma once

/// Elementwise programs on the device: the formulas that the CPU's loops have, and where elements lie. The
/// body of a program is put together from these when it first runs.
#include "tensora/kernels/scalar.h"

namespace accelera::tensora::device {

#define FORMULA(name, inputs, types, ...)                          \
    struct name##_formula {                                        \
        template <typename S, typename E>                          \
        static TENSORA_INLINE auto of(E x, E y = E(), E z = E()) { \
            (void)y, (void)z;                                      \
            return __VA_ARGS__;                                    \
        }                                                          \
    };
#include "tensora/kernels/formulas.def"
#undef FORMULA

/// A formula of stored values, as it is stored; halves are computed as floats.
template <typename F, typename S, typename... Es>
TENSORA_INLINE auto value(Es... stored) {
    using E = Computed<S>;
    const auto result = F::template of<S, E>(E(stored)...);
    using R = math::conditional_t<true, decltype(F::template of<S, E>(E(stored)...)), E>;
    if constexpr (math::is_same_v<R, E>)
        return S(result);
    else
        return result;
}

/// Number of the thread among all of the launch, and how many these are.
TENSORA_INLINE int64_t first_element() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
TENSORA_INLINE int64_t all_threads() { return int64_t(gridDim.x) * blockDim.x; }

template <int rank>
struct Extents {
    int64_t of[rank];
    __device__ int64_t product() const {
        int64_t result = 1;
        for (int i = 0; i < rank; ++i) result *= of[i];
        return result;
    }
};
/// Distances of neighbours, in elements.
template <int rank>
struct Steps {
    int64_t of[rank];
};

/// Index on each axis of the i-th element. `Int` is as narrow as the number of elements allows: 64-bit
/// divisions are slow.
template <int rank, typename Int>
struct Place {
    Int digit[rank];
    TENSORA_INLINE Place(const Extents<rank>& shape, Int i) {
        TENSORA_UNROLL
        for (int k = rank - 1; k > 0; --k) {
            const Int extent = Int(shape.of[k]);
            digit[k] = i % extent;
            i /= extent;
        }
        digit[0] = i;
    }
    TENSORA_INLINE int64_t in(const Steps<rank>& steps) const {
        int64_t at = 0;
        TENSORA_UNROLL
        for (int k = 0; k < rank; ++k) at += int64_t(digit[k]) * steps.of[k];
        return at;
    }
};
template <typename Int>
struct Place<0, Int> {
    TENSORA_INLINE Place(const Extents<1>&, Int) {}
    TENSORA_INLINE int64_t in(const Steps<1>&) const { return 0; }
};

/// One number among the arguments of a kernel.
struct alignas(8) Number {
    unsigned char bytes[16];
    template <typename S>
    TENSORA_INLINE S as() const {
        S result;
        __builtin_memcpy(&result, bytes, sizeof(S));
        return result;
    }
};

}  // namespace accelera::tensora::device
