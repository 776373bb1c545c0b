#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>

#include "policy/any.h"

namespace accelera {

namespace nb = nanobind;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
policy::Span<T> span_of(const Column<T>& column) {
    return {column.data(), column.shape(0)};
}

template <class T>
policy::Span<T> span_of(const std::optional<Column<T>>& column) {
    return column ? span_of(*column) : policy::Span<T>{};
}

/// What a policy may know, as Python gives it; holds the arrays.
struct GivenKnowledge {
    int64_t capacity_bytes = 0;
    policy::Id buffers = 0;
    std::optional<Column<policy::Time>> next_use;
    std::optional<Column<policy::Time>> next_read;
    std::optional<Column<double>> score;
    uint64_t seed = 0;

    policy::Knowledge view() const {
        return {capacity_bytes, buffers, span_of(next_use), span_of(next_read), span_of(score), seed};
    }
};

/// A policy written in Python, called as the compiled ones are. Needs the interpreter's lock.
std::unique_ptr<policy::AnyPolicy> python_policy(nb::object object);

}  // namespace accelera
