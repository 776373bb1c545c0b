#include "tensora/core/lines.h"

#include <algorithm>
#include <cstring>

#include "tensora/base/threads.h"
#include "tensora/core/device_kernels.h"

namespace accelera::tensora {

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
