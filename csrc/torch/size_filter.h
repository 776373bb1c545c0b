#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <optional>

namespace accelera {

// Shapes that a result takes from its operands; hooks/python.py says the same in Python.
enum class Rule { Product, Pointwise, Attention, Heads };

// The tensors that a call takes, in order; at most eight of the operators' arguments are tensors.
class Operands {
  public:
    void take(const at::Tensor& tensor) {
        const auto* impl = tensor.unsafeGetTensorImpl();
        if (impl->is_wrapped_number()) return;
        plain_ = plain_ && is_plain(*impl);
        impls_[count_++] = impl;
    }

    bool plain() const { return plain_; }

    int64_t longest() const {
        int64_t found = 1;
        for (int i = 0; i < count_; ++i)
            for (int64_t size : sizes(i)) found = std::max(found, size);
        return found;
    }

    // Bytes of the operands and, with a rule, of the result.
    int64_t bytes(std::optional<Rule> rule) const {
        int64_t taken = 0, widest = 0;
        for (int i = 0; i < count_; ++i) {
            const auto item = static_cast<int64_t>(impls_[i]->dtype().itemsize());
            taken += impls_[i]->numel() * item;
            widest = std::max(widest, item);
        }
        return rule ? taken + result(*rule) * widest : taken;
    }

  private:
    static bool is_plain(const c10::TensorImpl& impl) {
        using c10::DispatchKey;
        constexpr c10::DispatchKeySet others(
            {DispatchKey::Python, DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
             DispatchKey::Functionalize, DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::Quantized,
             DispatchKey::NestedTensor, DispatchKey::MkldnnCPU});
        return !impl.key_set().has_any(others) && !impl.has_symbolic_sizes_strides();
    }

    c10::IntArrayRef sizes(int i) const { return impls_[i]->sizes(); }

    int64_t result(Rule rule) const {
        switch (rule) {
            case Rule::Product:
                return product();
            case Rule::Pointwise:
                return broadcast(0);
            case Rule::Attention:
                return attention();
            case Rule::Heads:
                return count_ < 1 || sizes(0).empty() ? 0 : attention() * sizes(0).back();
        }
        return 0;
    }

    // Elements of all operands broadcast together, without their last `dropped` dimensions.
    int64_t broadcast(size_t dropped, int first = 0) const {
        size_t most = dropped;
        for (int i = first; i < count_; ++i) most = std::max(most, sizes(i).size());
        int64_t elements = 1;
        for (size_t back = dropped + 1; back <= most; ++back) {
            int64_t size = 1;
            for (int i = first; i < count_; ++i) {
                if (back > sizes(i).size()) continue;
                const int64_t own = sizes(i)[sizes(i).size() - back];
                size = own == 0 || size == 0 ? 0 : std::max(size, own);
            }
            elements *= size;
        }
        return elements;
    }

    int64_t product() const {
        if (count_ < 2) return 0;
        const auto first = sizes(count_ - 2), second = sizes(count_ - 1);
        const int64_t rows = first.size() > 1 ? first[first.size() - 2] : 1;
        const int64_t columns = second.size() > 1 ? second.back() : 1;
        if (first.size() <= 2 && second.size() <= 2) return rows * columns;
        return broadcast(2, count_ - 2) * rows * columns;
    }

    // The scores and what comes of them; of several heads, of which there are at most as many as columns.
    int64_t attention() const {
        if (count_ < 3) return 0;
        const auto query = sizes(0), key = sizes(1), value = sizes(2);
        if (std::min({query.size(), key.size(), value.size()}) < 2) return 0;
        int64_t rows = 1;
        for (int64_t size : query.slice(0, query.size() - 1)) rows *= size;
        return rows * (key[key.size() - 2] + value.back());
    }

    std::array<const c10::TensorImpl*, 8> impls_{};
    int count_ = 0;
    bool plain_ = true;
};

}  // namespace accelera
