#pragma once

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tensora/core/op.h"

namespace accelera::tensora {

using Hook = std::function<T(const T& grad)>;
struct Hooks {
    std::vector<std::pair<int64_t, Hook>> all;  ///< by the number that removes them
    int64_t next = 0;
};

/// Where the gradient of an input goes on: to the operation that made it, or into a leaf.
struct Edge {
    Ref<Node> node;
    int output = 0;
    T leaf;
    T saved;               ///< the input itself, where the vjp reads it
    uint32_t version = 0;  ///< of its storage when it was saved
    Dims shape;
    DType dtype = DType::f32;
    Device device;

    bool wanted() const { return node || leaf; }
};

/// One operation in the graph that gradients flow back through.
class Node : public Counted {
  public:
    Node(const Op* op, std::span<const T> inputs);
    ~Node() override;
    static void* operator new(size_t size) { return take_small(size); }
    static void operator delete(void* memory, size_t size) { give_small(memory, size); }  // of a failed `new`
    static void operator delete(Node* node, std::destroying_delete_t);
    /// Bytes that `new` allocated.
    virtual size_t object_bytes() const { return sizeof(Node); }

    virtual std::string name() const { return op->name; }
    /// Gradients of the inputs from those of the outputs; a missing one is zero.
    virtual SmallVector<T> backward(const SmallVector<T>& grads);
    /// Where the engine puts the gradients that the inputs have so far, for a node that adds its own to them.
    virtual SmallVector<T>* sums() { return nullptr; }
    /// Let go of what was saved: the graph was used.
    virtual void release();

    const Op* op;
    uint64_t sequence;  ///< grows with every node of the process: each comes after its inputs
    uint64_t oldest;    ///< smallest sequence of this node and all that its gradient reaches
    SmallVector<Edge> edges;
    SmallVector<Call::Output> outputs;
    SmallVector<T> saved_outputs;  ///< outside of the graph: with their node they would be a cycle
    SmallVector<uint32_t> saved_versions;
    /// An output whose gradient somebody waits for.
    struct Watch {
        int output;
        std::shared_ptr<Hooks> hooks;
        std::weak_ptr<T> grad;
    };
    std::vector<Watch> watches;
    std::unique_ptr<Params> params;
    std::string place;  ///< lines of the program that made it, in anomaly mode
    bool released = false;

  private:
    Node* next_unreferenced_ = nullptr;
};

/// What a vjp sees.
class Backward {
  public:
    Backward(Node& node, const SmallVector<T>& grads)
        : node_(node), grads_(grads), given_(node.edges.size()) {}

    const Op& op() const { return *node_.op; }
    T input(int i = 0) const;
    T output(int i = 0) const;
    /// Gradient of an output; zeros where none came.
    T grad(int i = 0) const;
    bool has_grad(int i) const { return bool(grads_[i]); }
    const Params& params() const { return node_.params ? *node_.params : no_params; }
    bool wants(int i) const { return node_.edges[i].wanted(); }
    int inputs() const { return int(node_.edges.size()); }
    const Dims& shape(int i = 0) const { return node_.edges[i].shape; }
    DType dtype(int i = 0) const { return node_.edges[i].dtype; }
    const Dims& output_shape(int i = 0) const { return node_.outputs[i].shape; }
    /// Broadcast axes are summed; type and device are made the input's.
    void give(int i, const T& grad);
    /// The same, computed only where it is wanted.
    template <typename Function>
    void give(int i, Function&& function)
        requires std::is_invocable_r_v<T, Function>
    {
        if (wants(i)) give(i, function());
    }
    SmallVector<T> take() { return std::move(given_); }

  private:
    Node& node_;
    const SmallVector<T>& grads_;
    SmallVector<T> given_;
};

bool grad_enabled();
/// Whether operations of this thread are recorded, until the end of the block.
class GradMode {
  public:
    explicit GradMode(bool enabled);
    ~GradMode();

  private:
    bool before_;
};
void set_grad_enabled(bool enabled);

/// Whether an operation on these inputs is recorded.
bool any_tracked(std::span<const T> inputs);
/// Record a call whose inputs take part in a graph.
void record(Call& call);
/// The operation that made a tensor, made anew for a view whose storage was written through another; or null.
Ref<Node> node_of(const Tensor& tensor);
/// Let `target`, just written in place by the operation that made `value`, stand in its place in the graph.
void rebase(Tensor& target, const T& value);
/// Let hooks and `grad` of a tensor that is no leaf be served by its node.
void watch(Tensor& tensor, bool retain);
/// The gradient that a tensor has collected, or null.
const T& collected_gradient(const Tensor& tensor);
/// Raises when writing to a tensor in place would lose gradients.
void check_writable(const Tensor& target, const char* op);

struct BackwardOptions {
    bool retain_graph = false;
    bool create_graph = false;
    bool accumulate = true;  ///< into leaves; otherwise only the gradients of `inputs` are found
    bool allow_unused = false;
    bool leaf_hooks = true;  ///< hooks of leaves are called
};
/// Gradients of `inputs` (null where nothing leads there), and of all leaves when accumulating.
std::vector<T> run_backward(const std::vector<T>& outputs, const std::vector<T>& grads,
                            const std::vector<T>& inputs, const BackwardOptions& options);

/// Tells where the program stands, for the nodes of anomaly mode; set by the bindings.
using Placer = std::string (*)();
void set_anomaly(Placer placer);
bool anomaly();

}  // namespace accelera::tensora
