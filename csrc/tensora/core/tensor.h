#pragma once

#include <nanobind/intrusive/counter.h>

#include <memory>

#include "tensora/base/base.h"
#include "tensora/base/dtype.h"
#include "tensora/core/memory.h"

namespace accelera::tensora {

class Deferred;
class Node;
class Tensor;
struct Hooks;
using T = Ref<Tensor>;

/// Where elements lie.
struct Layout {
    Dims shape;
    Dims strides;        ///< in elements
    int64_t offset = 0;  ///< of the first element in the storage, in elements
};

/// What autograd knows of a tensor that takes part in a graph; absent of one that does not.
struct Gradient {
    Gradient();
    ~Gradient();
    bool required = false;         ///< a leaf that collects its gradient
    Ref<Node> node;                ///< operation that made the tensor; null of a leaf
    int output = 0;                ///< which of its outputs this is
    uint64_t first_use = 0;        ///< of a leaf: number of the first operation of the graph that reads it
    uint64_t reset_at = 0;         ///< of a leaf: number of the next operation when first_use was set to 0
    std::shared_ptr<T> grad;       ///< collected so far; shared with `node` of a tensor that is no leaf
    std::shared_ptr<Hooks> hooks;  ///< called with the gradient before it is collected; likewise
    std::shared_ptr<Hooks> after;  ///< of a leaf: called with the collected gradient
};

/// Array of numbers of one type, with shape and strides over a storage that several tensors may share.
class Tensor final : public nanobind::intrusive_base {
  public:
    Tensor(Ref<Storage> storage, const Layout& layout, DType dtype);
    /// Tensor whose elements are computed when somebody needs them.
    explicit Tensor(const Ref<Deferred>& deferred);
    ~Tensor() override;
    /// New tensor on the thread's device, contiguous, its elements anything.
    static T empty(const Dims& shape, DType dtype);
    /// New tensor with the shape of a contiguous one.
    static T empty_like(const Tensor& other, DType dtype);
    static T full(const Dims& shape, DType dtype, C128 value);
    /// A number on the CPU, which operations on any device take.
    static T scalar(DType dtype, double value) {
        const DeviceScope scope(cpu);
        return full({}, dtype, value);
    }
    /// Another tensor over the same storage, outside of any graph.
    T alias(const Layout& layout) const { return T(new Tensor(storage(), layout, dtype_)); }
    T detach() const;

    const Dims& shape() const { return layout_.shape; }
    const Dims& strides() const { return layout_.strides; }
    const Layout& layout() const { return layout_; }
    int dims() const { return layout_.shape.size(); }
    int64_t size() const { return size_; }
    DType dtype() const { return dtype_; }
    bool contiguous() const { return contiguous_; }
    const Ref<Storage>& storage() const {
        if (deferred_) [[unlikely]]
            settle();
        return storage_;
    }
    /// The result that this tensor waits for; null when its elements are there.
    const Ref<Deferred>& deferred() const { return deferred_; }
    uint32_t version() const;
    Device device() const;
    /// First element of a tensor on a CUDA device, for what comes next on the thread's stream.
    char* device_bytes() const { return storage()->device_data() + layout_.offset * size_of(dtype_); }
    char* bytes() const { return storage()->data() + layout_.offset * size_of(dtype_); }
    template <typename E>
    E* data() const {
        return reinterpret_cast<E*>(bytes());
    }

    Gradient* gradient() const { return gradient_.get(); }
    Gradient& make_gradient() {
        if (!gradient_) gradient_ = std::make_unique<Gradient>();
        return *gradient_;
    }
    void drop_gradient() { gradient_.reset(); }
    /// Whether operations on this tensor are recorded.
    bool tracked() const { return gradient_ && (gradient_->required || gradient_->node); }

    /// Tensor of which this one is a view that gradients pass through, or null; never itself a view.
    const T& base() const { return base_; }
    void set_base(const T& base) {
        base_ = base;
        base_version_ = storage_->version();
    }
    /// Version of the storage when this view's place in the graph was made; after writes it is made anew.
    uint32_t base_version() const { return base_version_; }

    /// Number of the first operation that saved this tensor, or a view of it, since it was last written in
    /// place; 0: none.
    uint64_t first_save() const { return first_save_; }
    void set_first_save(uint64_t sequence) { first_save_ = sequence; }

    /// Take the storage, layout and type of another tensor; the object stays the one it is.
    void become(const Tensor& other);

    // Tensors that Python has seen are freed by nanobind, with the global delete.
    static void* operator new(size_t size) { return take_object(size); }
    static void operator delete(void* memory, size_t size) { give_object(memory, size); }
    // nanobind makes instances in its own memory.
    static void* operator new(size_t, void* place) { return place; }

  private:
    Tensor(Ref<Storage> storage, const Tensor& other, DType dtype);
    bool lies_contiguous() const;
    void settle() const;

    mutable Ref<Storage> storage_;
    mutable Ref<Deferred> deferred_;
    T base_;
    uint32_t base_version_ = 0;
    uint64_t first_save_ = 0;
    std::unique_ptr<Gradient> gradient_;
    Layout layout_;
    int64_t size_;
    DType dtype_;
    bool contiguous_;
};

/// Layouts of views; the errors name `op`.
Layout broadcast_layout(const Tensor& tensor, const Dims& shape, const char* op);
/// Layout with another shape over the same elements, or nothing where only a copy has it.
std::optional<Layout> reshaped_layout(const Tensor& tensor, const Dims& shape);
/// Raise unless all elements of a layout are among the first `size` of a storage.
void require_inside(const char* op, const Layout& layout, int64_t size);
/// Shape with -1 replaced by what the others leave.
Dims complete_shape(const Tensor& tensor, const Dims& shape, const char* op);

}  // namespace accelera::tensora
