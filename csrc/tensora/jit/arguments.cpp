#include "tensora/jit/arguments.h"

#include <algorithm>

#include "tensora/core/autograd.h"
#include "tensora/core/basic_functions.h"

namespace accelera::tensora {

namespace {

template <typename Number>
void append(std::string& key, const Number& number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void append(std::string& key, const Dims& dims) {
    for (const int64_t value : dims) append(key, value);
}

bool has_hooks(const Tensor& tensor) {
    const Gradient* const gradient = tensor.gradient();
    if (!gradient || gradient->node) return false;
    const auto is_used = [](const std::shared_ptr<Hooks>& hooks) { return hooks && !hooks->all.empty(); };
    return is_used(gradient->hooks) || is_used(gradient->after);
}

void append(std::string& key, const Tensor& tensor) {
    append(key, tensor.dtype());
    append(key, tensor.device().index);
    append(key, uint8_t(tensor.dims()));
    append(key, tensor.shape());
    const bool is_computed = bool(node_of(tensor));
    append(key, uint8_t((tensor.contiguous() ? 1 : 0) | (tensor.tracked() ? 2 : 0) | (is_computed ? 4 : 0)));
    if (!tensor.contiguous()) append(key, tensor.strides());
}

}  // namespace

void ElementRange::include(const ElementRange& other) {
    begin = std::min(begin, other.begin);
    end = std::max(end, other.end);
}

ElementRange elements_of(const Layout& layout) {
    ElementRange range{layout.offset, layout.offset + 1};
    for (int i = 0; i < layout.shape.size(); ++i) {
        if (layout.shape[i] == 0) return {layout.offset, layout.offset};
        const int64_t reach = (layout.shape[i] - 1) * layout.strides[i];
        (reach < 0 ? range.begin : range.end) += reach;
    }
    return range;
}

bool may_overlap(const Tensor& a, const Tensor& b) {
    if (!(a.device() == b.device())) return false;
    const bool is_shared = a.storage() == b.storage();
    if (!is_shared && !a.device().is_cpu()) return false;
    const char* const start_of_a = is_shared ? nullptr : a.storage()->data();
    const char* const start_of_b = is_shared ? nullptr : b.storage()->data();
    const ElementRange in_a = elements_of(a.layout()), in_b = elements_of(b.layout());
    const auto size_of_a = size_of(a.dtype()), size_of_b = size_of(b.dtype());
    return start_of_a + in_a.begin * size_of_a < start_of_b + in_b.end * size_of_b &&
           start_of_b + in_b.begin * size_of_b < start_of_a + in_a.end * size_of_a;
}

bool any_overlap(const std::vector<T>& arguments, const std::vector<T>& tensors) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const T& argument) {
        return std::any_of(tensors.begin(), tensors.end(), [&](const T& tensor) {
            const T& gradient = collected_gradient(*tensor);
            return may_overlap(*argument, *tensor) || (gradient && may_overlap(*argument, *gradient));
        });
    });
}

std::optional<std::string> signature_of(const std::vector<T>& arguments) {
    std::string key;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const Tensor& tensor = *arguments[i];
        if (has_hooks(tensor)) return std::nullopt;
        append(key, tensor);
        size_t first = i;
        for (size_t k = i; k-- > 0;)
            if (arguments[k]->storage() == tensor.storage())
                first = k;
            else if (may_overlap(*arguments[k], tensor))
                return std::nullopt;
        if (first == i) continue;
        const Tensor& other = *arguments[first];
        if (other.dtype() != tensor.dtype()) return std::nullopt;
        append(key, uint32_t(first));
        append(key, tensor.layout().offset - other.layout().offset);
        const auto same = std::find(arguments.begin(), arguments.begin() + int64_t(i), arguments[i]);
        append(key, uint32_t(same - arguments.begin()));
    }
    return key;
}

std::vector<char> bytes_of(const T& tensor) {
    const T whole = contiguous(to_device(tensor->detach(), cpu));
    const char* const first = whole->bytes();
    return {first, first + whole->size() * size_of(whole->dtype())};
}

}  // namespace accelera::tensora
