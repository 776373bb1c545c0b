#include "tensora/core/autocast.h"

#include <unordered_map>

#include "tensora/core/autograd.h"
#include "tensora/core/basic_functions.h"

namespace accelera::tensora {

constinit thread_local bool autocasting = false;

namespace {

struct Block {
    Autocast of[2] = {{false, DType::bf16}, {false, DType::f16}};  ///< the CPU, CUDA devices
    bool cache = true;
    bool autocasting = false;  ///< what is restored when the block is closed
};

/// A leaf and what it became. It is valid while the leaf has this memory, as it was.
struct CastLeaf {
    T leaf;
    Ref<Storage> storage;
    uint32_t version = 0;
    T cast;

    bool serves(const Tensor& tensor, DType dtype) const {
        return cast->dtype() == dtype && storage == tensor.storage() && version == storage->version() &&
               (cast->tracked() || !grad_enabled());
    }
};

struct Blocks {
    std::vector<Block> open;
    std::unordered_map<const Tensor*, CastLeaf> cast_leaves;
};

/// Leaked: tensors may die after the thread's own objects.
Blocks& blocks() {
    static thread_local Blocks* const all = new Blocks;
    return *all;
}

bool is_cast(const Tensor& tensor) {
    return is(tensor.dtype(), floats) && tensor.dtype() != DType::f64 &&
           autocast_of(!tensor.device().is_cpu()).enabled;
}

bool is_kept(const Tensor& tensor) {
    const Gradient* const gradient = tensor.gradient();
    return blocks().open.back().cache && tensor.dtype() == DType::f32 && gradient && gradient->required &&
           !gradient->node && !tensor.base();
}

T to_lower(const T& tensor, DType lower) {
    if (tensor->dtype() == lower || !is_kept(*tensor)) return cast(tensor, lower);
    CastLeaf& kept = blocks().cast_leaves[tensor.get()];
    if (!kept.leaf || !kept.serves(*tensor, lower))
        kept = {tensor, tensor->storage(), tensor->storage()->version(), cast(tensor, lower)};
    return kept.cast;
}

/// The type that holds the floating-point inputs, of which lower ones of another kind need float32.
DType widest_of(std::span<const T> inputs) {
    std::optional<DType> widest;
    for (const T& tensor : inputs)
        if (is(tensor->dtype(), floats))
            widest = widest ? promote(*widest, tensor->dtype()) : tensor->dtype();
    return widest.value_or(DType::f32);
}

}  // namespace

Autocast autocast_of(bool on_cuda) {
    const std::vector<Block>& open = blocks().open;
    return (open.empty() ? Block() : open.back()).of[on_cuda];
}

void open_autocast(bool on_cuda, const Autocast& autocast, bool cache) {
    require(is(autocast.lower, halves), "[autocast] dtype=", name_of(autocast.lower),
            "; give float16 or bfloat16");
    std::vector<Block>& open = blocks().open;
    Block block = open.empty() ? Block() : open.back();
    block.of[on_cuda] = autocast;
    block.cache = cache;
    block.autocasting = autocasting;
    open.push_back(block);
    autocasting = block.of[0].enabled || block.of[1].enabled;
}

void close_autocast() {
    std::vector<Block>& open = blocks().open;
    if (open.empty())
        fail(Kind::runtime, "[autocast] a block ends in a thread that has none open; end it where it began");
    autocasting = open.back().autocasting;
    open.pop_back();
    if (open.empty()) blocks().cast_leaves.clear();
}

DType autocast_type(Precision precision, const Tensor& tensor) {
    if (!autocasting || !is_cast(tensor)) return tensor.dtype();
    if (precision == Precision::single) return DType::f32;
    const bool lower = precision == Precision::lower;
    return lower ? autocast_of(!tensor.device().is_cpu()).lower : tensor.dtype();
}

std::vector<T> autocast_inputs(Precision precision, std::span<const T> inputs) {
    std::vector<T> result(inputs.begin(), inputs.end());
    if (precision == Precision::inputs) return result;
    const DType widest = widest_of(inputs);
    for (T& tensor : result) {
        if (!is_cast(*tensor)) continue;
        const DType dtype = precision == Precision::widest ? widest : autocast_type(precision, *tensor);
        tensor = precision == Precision::lower ? to_lower(tensor, dtype) : cast(tensor, dtype);
    }
    return result;
}

}  // namespace accelera::tensora
