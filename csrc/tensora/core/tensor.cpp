#include "tensora/core/tensor.h"

#include <algorithm>
#include <cstring>

#include "tensora/core/basic_functions.h"
#include "tensora/core/capture_events.h"
#include "tensora/core/op.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

Dims broadcast(const Dims& a, const Dims& b, const char* op) {
    const Dims& longer = a.size() >= b.size() ? a : b;
    const Dims& shorter = a.size() >= b.size() ? b : a;
    Dims result = longer;
    const int skip = longer.size() - shorter.size();
    for (int i = 0; i < shorter.size(); ++i) {
        int64_t& extent = result[i + skip];
        if (extent == shorter[i] || shorter[i] == 1) continue;
        if (extent != 1)
            fail(Kind::shape, "[", op, "] shapes ", a.words(), " and ", b.words(),
                 " do not broadcast: ", a.size() >= b.size() ? extent : shorter[i], " and ",
                 a.size() >= b.size() ? shorter[i] : extent, " at axis ", i + skip,
                 "; each pair must be equal, or one of it 1");
        extent = shorter[i];
    }
    return result;
}

T Tensor::empty(const Dims& shape, DType dtype) {
    int64_t size = size_of(dtype);
    for (int64_t extent : shape) {
        if (extent < 0)
            fail(Kind::shape, "[tensora] a shape of ", shape.words(), "; no extent may be negative");
        if (__builtin_mul_overflow(size, std::max<int64_t>(extent, 1), &size))
            fail(Kind::memory, "[tensora] a tensor of shape ", shape.words(),
                 " has more bytes than a computer can address");
    }
    const int64_t nbytes = shape.contains(0) ? 0 : size;
    return T(new Tensor(Storage::allocate(nbytes), Layout{shape, strides_of(shape), 0}, dtype));
}

Tensor::Tensor(Ref<Storage> storage, const Layout& layout, DType dtype)
    : storage_(std::move(storage)), layout_(layout), size_(layout_.shape.product()), dtype_(dtype) {
    contiguous_ = lies_contiguous();
}

Tensor::Tensor(Ref<Storage> storage, const Tensor& other, DType dtype)
    : storage_(std::move(storage)),
      layout_(other.layout_.shape, other.layout_.strides, 0),
      size_(other.size_),
      dtype_(dtype),
      contiguous_(true) {}

Tensor::Tensor(const Ref<Deferred>& deferred)
    : deferred_(deferred),
      layout_(deferred->shape(), strides_of(deferred->shape()), 0),
      size_(deferred->shape().product()),
      dtype_(deferred->dtype()),
      contiguous_(true) {
    deferred_->add_tensor();
}

Tensor::~Tensor() {
    if (deferred_) deferred_->drop_tensor();
}

void Tensor::settle() const {
    const Ref<Deferred> deferred = deferred_;
    const Ref<Storage>& storage = deferred->storage();
    if (!deferred_) return;  // another thread came first
    storage_ = storage;
    deferred->drop_tensor();
    deferred_.reset();
}

Device Tensor::device() const { return deferred_ ? deferred_->device() : storage_->device(); }

uint32_t Tensor::version() const { return deferred_ && !deferred_->has_run() ? 0 : storage()->version(); }

T Tensor::detach() const { return deferred_ ? T(new Tensor(deferred_)) : alias(layout_); }

T Tensor::empty_like(const Tensor& other, DType dtype) {
    return T(new Tensor(Storage::allocate(other.size_ * size_of(dtype)), other, dtype));
}

T Tensor::full(const Dims& shape, DType dtype, C128 value) {
    if (thread_state.capture && !shape.empty()) return copy(expand(full({}, dtype, value), shape));
    if (!DeviceScope::current().is_cpu()) {
        T result = empty(shape, dtype);
        const DeviceScope on_cpu(cpu);
        copy_elements(*full({}, dtype, value), *result);
        return result;
    }
    T result = empty(shape, dtype);
    if (result->storage()->lacks_contents()) return result;
    visit(dtype, [&]<typename E>(Tag<E>) {
        const E element = is_integer<E> ? cast_value<E>(int64_t(value.real())) : cast_value<E>(value);
        std::fill_n(result->data<E>(), result->size(), element);
    });
    return result;
}

bool Tensor::lies_contiguous() const {
    int64_t step = 1;
    for (int i = layout_.shape.size() - 1; i >= 0; --i) {
        if (layout_.shape[i] != 1 && layout_.strides[i] != step) return size_ == 0;
        step *= layout_.shape[i];
    }
    return true;
}

void Tensor::become(const Tensor& other) {
    storage();  // whoever waits for the same result keeps it
    storage_ = other.storage();
    layout_ = other.layout_;
    size_ = other.size_;
    dtype_ = other.dtype_;
    contiguous_ = other.contiguous_;
}

Layout broadcast_layout(const Tensor& tensor, const Dims& shape, const char* op) {
    const int skip = shape.size() - tensor.dims();
    Layout layout{shape, Dims::filled(shape.size(), 0), tensor.layout().offset};
    bool fits = skip >= 0;
    for (int i = 0; fits && i < tensor.dims(); ++i) {
        if (tensor.shape()[i] == shape[i + skip])
            layout.strides[i + skip] = tensor.strides()[i];
        else
            fits = tensor.shape()[i] == 1;
    }
    require_shape(fits, "[", op, "] a tensor of shape ", tensor.shape().words(), " does not broadcast to ",
                  shape.words());
    return layout;
}

std::optional<Layout> reshaped_layout(const Tensor& tensor, const Dims& shape) {
    Layout layout{shape, strides_of(shape), tensor.layout().offset};
    if (tensor.contiguous()) return layout;
    // Axes of the old shape that lie as one are runs; each new axis must divide within its run.
    Dims old_shape, old_strides;
    for (int i = 0; i < tensor.dims(); ++i)
        if (tensor.shape()[i] != 1) {
            old_shape.push_back(tensor.shape()[i]);
            old_strides.push_back(tensor.strides()[i]);
        }
    int at = 0;
    int next = 0;
    while (at < old_shape.size()) {
        int64_t run = old_shape[at];
        int end = at + 1;
        while (end < old_shape.size() && old_strides[end - 1] == old_strides[end] * old_shape[end])
            run *= old_shape[end++];
        int64_t made = 1;
        const int first = next;
        while (made < run && next < shape.size()) made *= shape[next++];
        if (made != run) return std::nullopt;
        int64_t step = old_strides[end - 1];
        for (int i = next - 1; i >= first; --i) {
            layout.strides[i] = step;
            step *= shape[i];
        }
        at = end;
    }
    return layout;
}

void require_inside(const char* op, const Layout& layout, int64_t size) {
    require_shape(layout.strides.size() == layout.shape.size(), "[", op, "] ", layout.shape.size(),
                  " extents and ", layout.strides.size(), " strides; give one for each axis");
    layout.shape.product();  // may be refused
    if (layout.shape.contains(0)) return;
    __int128 low = layout.offset, high = layout.offset;
    for (int i = 0; i < layout.shape.size(); ++i) {
        const __int128 reach = __int128(layout.strides[i]) * (layout.shape[i] - 1);
        (reach < 0 ? low : high) += reach;
    }
    require_shape(low >= 0 && high < size, "[", op, "] shape ", layout.shape.words(), " with strides ",
                  layout.strides.words(), " and offset ", layout.offset, " reaches outside of the ", size,
                  " elements of the tensor");
}

Dims complete_shape(const Tensor& tensor, const Dims& shape, const char* op) {
    Dims result = shape;
    int unknown = -1;
    int64_t known = 1;
    bool overflows = false;
    for (int i = 0; i < shape.size(); ++i) {
        require_shape(shape[i] >= -1, "[", op, "] an extent of ", shape[i], " in ", shape.words());
        if (shape[i] >= 0) {
            overflows |= __builtin_mul_overflow(known, shape[i], &known);
        } else {
            require_shape(unknown < 0, "[", op, "] -1 stands twice in ", shape.words(),
                          "; only one extent can follow from the others");
            unknown = i;
        }
    }
    if (overflows) known = shape.contains(0) ? 0 : -1;
    if (unknown >= 0 && known > 0 && tensor.size() % known == 0) {
        result[unknown] = tensor.size() / known;
        known *= result[unknown];
    }
    require_shape(known == tensor.size() && (unknown < 0 || result[unknown] >= 0), "[", op,
                  "] a tensor of shape ", tensor.shape().words(), " has ", tensor.size(),
                  " elements, which the shape ", shape.words(), " does not hold");
    return result;
}

// --- element types --------------------------------------------------------------------------------------

std::optional<DType> dtype_named(std::string_view name) {
    for (int i = 0; i < n_dtypes; ++i)
        if (name_of(DType(i)) == name) return DType(i);
    return std::nullopt;
}

namespace {

DType promote_integers(DType a, DType b) {
    const bool same_sign = is(a, signeds) == is(b, signeds);
    if (same_sign) return std::max(a, b);
    const DType sign = is(a, signeds) ? a : b;
    const DType none = is(a, signeds) ? b : a;
    const int64_t bytes = std::max(size_of(sign), 2 * size_of(none));
    if (bytes > 8) return DType::f64;  // uint64 with a signed one, as NumPy
    return bytes == 2 ? DType::i16 : bytes == 4 ? DType::i32 : bytes == 8 ? DType::i64 : DType::i8;
}

DType promote_slowly(DType a, DType b) {
    if (a == b) return a;
    if (a > b) std::swap(a, b);
    if (a == DType::bool_) return b;
    if (is(a, integers)) return is(b, integers) ? promote_integers(a, b) : b;
    if (a == DType::f16 && b == DType::bf16) return DType::f32;
    if (a == DType::f64 && b == DType::c64) return DType::c128;
    return b;
}

}  // namespace

DType promote(DType a, DType b) {
    if (a == b) return a;
    static const auto table = [] {
        struct Table {
            DType of[n_dtypes][n_dtypes];
        } table;
        for (int i = 0; i < n_dtypes; ++i)
            for (int j = 0; j < n_dtypes; ++j) table.of[i][j] = promote_slowly(DType(i), DType(j));
        return table;
    }();
    return table.of[int(a)][int(b)];
}

DType real_of(DType dtype) {
    return dtype == DType::c64 ? DType::f32 : dtype == DType::c128 ? DType::f64 : dtype;
}

DType complex_of(DType dtype) {
    return dtype == DType::f64 || dtype == DType::c128 ? DType::c128 : DType::c64;
}

}  // namespace accelera::tensora
