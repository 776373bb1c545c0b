#include "tensora/core/autograd.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <unordered_set>

#include "tensora/base/interrupt.h"
#include "tensora/core/autocast.h"
#include "tensora/core/basic_functions.h"
#include "tensora/core/budget.h"
#include "tensora/core/op.h"

namespace accelera::tensora {

namespace {

std::atomic<uint64_t> next_sequence{1};
thread_local bool recording = true;
Placer placer = nullptr;

// Nodes of this thread that nothing refers to, and whether a call below destroys them.
thread_local constinit Node* unreferenced = nullptr;
thread_local constinit bool destroys_nodes = false;

Edge edge_to(const T& input, uint64_t sequence) {
    Edge edge;
    edge.shape = input->shape();
    edge.dtype = input->dtype();
    edge.device = input->device();
    if (Ref<Node> node = node_of(*input)) {
        edge.node = std::move(node);
        edge.output = input->gradient()->output;
    } else if (input->gradient() && input->gradient()->required) {
        edge.leaf = input;
        uint64_t& first = input->gradient()->first_use;
        if (first == 0) first = sequence;
    }
    return edge;
}

}  // namespace

bool grad_enabled() { return recording; }
void set_grad_enabled(bool enabled) { recording = enabled; }
GradMode::GradMode(bool enabled) : before_(recording) { recording = enabled; }
GradMode::~GradMode() { recording = before_; }

void set_anomaly(Placer next) { placer = next; }
bool anomaly() { return placer != nullptr; }

Gradient::Gradient() = default;
Gradient::~Gradient() = default;

Node::Node(const Op* op, std::span<const T> inputs)
    : op(op), sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)), oldest(sequence) {
    edges.reserve(inputs.size());
    for (const T& input : inputs) {
        edges.push_back(edge_to(input, sequence));
        if (const Node* const node = edges.back().node.get()) oldest = std::min(oldest, node->oldest);
    }
    if (placer) [[unlikely]]
        place = placer();
}

Node::~Node() = default;

/// Destroy a node, and those that only it referred to in a loop: a chain of destructors that each destroyed
/// the next would exhaust the stack. The list is in the nodes, since a destructor must not allocate.
void Node::operator delete(Node* node, std::destroying_delete_t) {
    node->next_unreferenced_ = std::exchange(unreferenced, node);
    if (destroys_nodes) return;
    destroys_nodes = true;
    while (Node* const last = unreferenced) {
        unreferenced = last->next_unreferenced_;
        const size_t nbytes = last->object_bytes();
        last->~Node();
        give_small(last, nbytes);
    }
    destroys_nodes = false;
}

SmallVector<T> Node::backward(const SmallVector<T>& grads) {
    const auto given = std::find_if(grads.begin(), grads.end(), [](const T& grad) { return bool(grad); });
    const DeviceScope scope(given == grads.end() ? cpu : (*given)->device());
    Backward call(*this, grads);
    op->vjp(call);
    return call.take();
}

void Node::release() {
    if (op && op->saves) released = true;
    for (Edge& edge : edges) edge.saved.reset();
    saved_outputs.clear();
}

namespace {

void check_kept(const Node& node, bool saved) {
    if (node.released || !saved)
        fail(Kind::runtime, "[backward of '", node.name(),
             "'] it runs a second time: the saved tensors were released after the first; give "
             "retain_graph=True to the first backward, or compute the forward again");
}

void check_version(const Node& node, const char* what, int i, uint32_t then, const Tensor& tensor) {
    const uint32_t now = tensor.version();
    if (then != now)
        fail(Kind::runtime, "[backward of '", node.name(), "'] ", what, " ", i, ", of shape ",
             tensor.shape().words(),
             ", was written in place "
             "after the operation (version ",
             then, ", now ", now, "), so its gradient is lost; write to a copy instead");
}

}  // namespace

T Backward::input(int i) const {
    const Edge& edge = node_.edges[i];
    check_kept(node_, bool(edge.saved));
    check_version(node_, "input", i, edge.version, *edge.saved);
    return edge.saved;
}

T Backward::output(int i) const {
    check_kept(node_, size_t(i) < node_.saved_outputs.size() && node_.saved_outputs[i]);
    const T& saved = node_.saved_outputs[i];
    check_version(node_, "output", i, node_.saved_versions[i], *saved);
    if (!grad_enabled()) return saved;
    T output = saved->detach();
    output->make_gradient().node = Ref<Node>(&node_);
    output->make_gradient().output = i;
    return output;
}

T Backward::grad(int i) const {
    if (grads_[i]) return grads_[i];
    return zeros(node_.outputs[i].shape, node_.outputs[i].dtype);
}

void Backward::give(int i, const T& grad) {
    if (!wants(i)) return;
    T value = grad;
    if (is(value->dtype(), complexes) && !is(dtype(i), complexes)) value = real(value);
    if (!(value->shape() == shape(i))) value = sum_to(value, shape(i));
    given_[i] = to_device(cast(value, dtype(i)), node_.edges[i].device);
}

namespace {

void keep_as_activation(const Tensor& tensor) {
    if (tensor.deferred() && !tensor.deferred()->has_run())
        tensor.deferred()->keep_as_activation();
    else if (tensor.storage()->role() == Role::other)
        tensor.storage()->set_role(Role::activation);
}

}  // namespace

/// The tensor whose graph a write to `tensor` changes: the base of a view, otherwise the tensor itself.
Tensor& written_whole(Tensor& tensor) { return tensor.base() ? *tensor.base() : tensor; }

void note_save(Tensor& input, uint64_t sequence) {
    Tensor& whole = written_whole(input);
    if (whole.first_save() == 0) whole.set_first_save(sequence);
}

bool any_tracked(std::span<const T> inputs) {
    if (!recording) return false;
    for (const T& input : inputs)
        if (input->tracked() || (input->base() && input->base()->tracked())) return true;
    return false;
}

void record(Call& call) {
    if (!any_tracked(call.in)) return;
    bool differentiable = call.op.vjp != nullptr;
    for (int i = 0; i < call.op.outputs && differentiable; ++i)
        differentiable = is(call.made[0].dtype, inexact);
    if (!differentiable) return;
    Ref<Node> node(new Node(&call.op, call.in));
    for (size_t i = 0; i < call.in.size(); ++i)
        if (call.op.saves & (in0 << std::min<size_t>(i, 7))) {
            node->edges[i].saved = call.in[i];
            note_save(*call.in[i], node->sequence);
            keep_as_activation(*call.in[i]);
            node->edges[i].version = call.in[i]->version();
        }
    if (&call.params != &no_params) node->params = std::make_unique<Params>(call.params);
    for (int i = 0; i < call.op.outputs; ++i) {
        node->outputs.push_back(call.made[i]);
        const bool saved = call.op.saves & (out0 << i);
        if (saved) keep_as_activation(*call.out[i]);
        node->saved_outputs.push_back(saved ? call.out[i]->detach() : T());
        node->saved_versions.push_back(saved ? call.out[i]->version() : 0);
        if (!is(call.made[i].dtype, inexact)) continue;
        Gradient& gradient = call.out[i]->make_gradient();
        gradient.node = node;
        gradient.output = i;
    }
}

void watch(Tensor& tensor, bool retain) {
    Gradient& gradient = tensor.make_gradient();
    if (retain && !gradient.grad) gradient.grad = std::make_shared<T>();
    const Ref<Node> node = node_of(tensor);
    if (!node) return;
    for (Node::Watch& one : node->watches)
        if (one.output == gradient.output) {
            one.hooks = gradient.hooks;
            one.grad = gradient.grad;
            return;
        }
    node->watches.push_back({gradient.output, gradient.hooks, gradient.grad});
}

// --- writing in place ------------------------------------------------------------------------------------

namespace {

/// Places of a base and of a view of it, counted from the first place of the base in its storage.
struct Places {
    int64_t count = 1;  ///< up to the last place of the base; some may be of no element
    Layout base;
    Layout view;
};

/// `ahead`: how far in the storage the first element of the view lies behind that of the base.
Places places_of(const Dims& shape, const Dims& strides, Layout view, int64_t ahead) {
    Places places{1, {shape, strides, 0}, std::move(view)};
    for (int i = 0; i < shape.size(); ++i) {
        const int64_t reach = (shape[i] - 1) * strides[i];
        places.count += std::abs(reach);
        places.base.offset -= std::min<int64_t>(reach, 0);
    }
    if (shape.product() == 0) places.count = places.base.offset = 0;
    places.view.offset = places.base.offset + ahead;
    return places;
}

/// a: shape of the view, b: its strides, c: strides of the base, x: how far the view lies behind it, exactly.
Params view_params(const Tensor& view, const Tensor& base) {
    Params params;
    params.a = view.shape();
    params.b = view.strides();
    params.c = base.strides();
    params.x = double(view.layout().offset - base.layout().offset);
    return params;
}

Places places_of(const Params& params, const Dims& base) {
    return places_of(base, params.c, {params.a, params.b}, int64_t(params.x));
}

/// Elements of the base's shape at its places, and zeros at places of no element.
T at_places(const T& elements, const Places& places) {
    if (places.base.strides == strides_of(elements->shape()))
        return reshape(contiguous(elements), {places.count});
    return strided_scatter(elements, {places.count}, places.base);
}

/// Gradient of "base, but with `value` where the view lies": inputs are both.
void write_vjp(Backward& call) {
    const Places places = places_of(call.params(), call.grad()->shape());
    const T grad = at_places(call.grad(), places);
    const T part = as_strided(grad, places.view);
    call.give(
        0, [&] { return as_strided(grad - strided_scatter(part, grad->shape(), places.view), places.base); });
    call.give(1, part);
}

/// Gradient of "this view of its base as the base is now".
void read_vjp(Backward& call) {
    const Places places = places_of(call.params(), call.shape());
    call.give(0, [&] {
        return as_strided(strided_scatter(call.grad(), {places.count}, places.view), places.base);
    });
}

const Op write_op{.name = "write_view", .family = Family::movement, .arity = 2, .vjp = write_vjp};
const Op read_op{.name = "read_view", .family = Family::movement, .arity = 1, .vjp = read_vjp};

/// Makes `node` the one that made `tensor`. As in PyTorch `retain_grad` follows the tensor to its new node,
/// and hooks stay with the values that they were registered for.
void set_node(Tensor& tensor, const Ref<Node>& node, int output) {
    Gradient& gradient = tensor.make_gradient();
    if (gradient.node)
        for (Node::Watch& one : gradient.node->watches)
            if (one.output == gradient.output) one.grad.reset();
    gradient.node = node;
    gradient.output = output;
    gradient.hooks.reset();
    if (gradient.grad) node->watches.push_back({output, nullptr, gradient.grad});
}

/// Let operations that made `value` drop `target`, which takes the place of `value` in the graph: a saved
/// tensor that is part of the result's graph would be a cycle, never freed. What they keep has the old
/// version, so a backward pass through them is refused all the same.
void break_cycles(Tensor& target, const Ref<Node>& value) {
    const uint64_t first_save = target.first_save();
    target.set_first_save(0);
    if (first_save == 0 || !value) return;
    std::vector<Node*> pending{value.get()};
    std::unordered_set<Node*> visited;
    while (!pending.empty()) {
        Node* const node = pending.back();
        pending.pop_back();
        if (node->sequence < first_save || !visited.insert(node).second) continue;
        for (Edge& edge : node->edges) {
            if (edge.saved && (edge.saved.get() == &target || edge.saved->base().get() == &target))
                edge.saved = edge.saved->detach();
            if (edge.node) pending.push_back(edge.node.get());
        }
    }
}

/// The node of "this view of its base as the base is now".
void remake_view(Tensor& view) {
    const T base = view.base();
    Ref<Node> node(new Node(&read_op, std::span(&base, 1)));
    node->params = std::make_unique<Params>(view_params(view, *base));
    node->outputs.push_back({view.shape(), view.dtype()});
    view.set_base(base);
    set_node(view, node, 0);
}

}  // namespace

Ref<Node> node_of(const Tensor& tensor) {
    const T& base = tensor.base();
    if (base && tensor.base_version() != tensor.storage()->version()) {
        if (base->tracked())
            remake_view(const_cast<Tensor&>(tensor));
        else
            const_cast<Tensor&>(tensor).set_base(base);
    }
    return tensor.gradient() ? tensor.gradient()->node : Ref<Node>();
}

void rebase(Tensor& target, const T& value) {
    const bool tracked = recording && (value->tracked() || target.tracked());
    if (!target.base()) {
        target.storage()->bump();
        if (!tracked) return;
        break_cycles(target, node_of(*value));
        if (value->tracked()) {
            set_node(target, node_of(*value), value->gradient()->output);
        } else if (target.gradient()) {
            target.gradient()->node = Ref<Node>();
        }
        return;
    }
    const T base = target.base();
    if (tracked || (recording && base->tracked())) {
        const T inputs[] = {base, value};
        Ref<Node> node(new Node(&write_op, inputs));
        node->params = std::make_unique<Params>(view_params(target, *base));
        node->outputs.push_back({base->shape(), base->dtype()});
        target.storage()->bump();
        break_cycles(*base, node);
        set_node(*base, node, 0);
        remake_view(target);
    } else {
        target.storage()->bump();
    }
}

const T& collected_gradient(const Tensor& tensor) {
    static const T none;
    return tensor.gradient() && tensor.gradient()->grad ? *tensor.gradient()->grad : none;
}

void check_writable(const Tensor& target, const char* op) {
    if (!target.storage()->writable())
        fail(Kind::value, "[", op,
             "] the tensor's memory is read-only, lent by another library; write to a copy");
    for (int i = 0; i < target.dims(); ++i)
        if (target.strides()[i] == 0 && target.shape()[i] > 1)
            fail(Kind::shape, "[", op, "] several elements of the tensor, of shape ", target.shape().words(),
                 ", lie at one place, as expand makes them; write to a copy");
    settle_readers(*target.storage());
    if (StepBudget* const budget = StepBudget::here()) [[unlikely]]
        budget->before_write(*target.storage());
    if (!recording) return;
    const auto is_leaf = [](const Tensor& tensor) {
        return tensor.gradient() && tensor.gradient()->required && !tensor.gradient()->node;
    };
    if (is_leaf(target) || (target.base() && is_leaf(*target.base())))
        fail(Kind::runtime, "[", op,
             "] a leaf that requires gradients is written in place; do it under no_grad(), or to a copy");
}

// --- the backward pass -----------------------------------------------------------------------------------

namespace {

T call_hooks(const Hooks& hooks, T grad) {
    const auto all = hooks.all;  // a hook may remove itself
    for (const auto& [number, hook] : all) {
        T next = hook(grad);
        if (!next) continue;
        if (!(next->shape() == grad->shape()))
            fail(Kind::shape, "[hook] returned a gradient of shape ", next->shape().words(), ", not ",
                 grad->shape().words());
        grad = to_device(cast(next, grad->dtype()), grad->device());
    }
    return grad;
}

class Engine {
  public:
    /// `oldest`: smallest sequence number of a node of the graph.
    Engine(const std::vector<T>& inputs, const BackwardOptions& options, uint64_t oldest)
        : options_(options), oldest_(oldest), found_(inputs.size()) {
        for (size_t i = 0; i < inputs.size(); ++i) {
            const Ref<Node> node = node_of(*inputs[i]);
            const void* key = node ? static_cast<const void*>(node.get()) : inputs[i].get();
            wanted_[key].push_back({node ? inputs[i]->gradient()->output : 0, i});
        }
    }

    /// Send a gradient along an edge.
    void send(const Edge& edge, const T& grad) {
        // The caller may have frozen the leaf after the forward pass.
        if (edge.leaf && !is_required(*edge.leaf)) return;
        const void* key = edge.node ? static_cast<const void*>(edge.node.get()) : edge.leaf.get();
        auto [place, is_new] = waiting_.try_emplace(key);
        Waiting& waiting = place->second;
        if (is_new) {
            waiting.node = edge.node;
            waiting.leaf = edge.leaf;
            waiting.grads.resize(edge.node ? edge.node->outputs.size() : 1);
            const uint64_t first = edge.leaf ? first_use(*edge.leaf->gradient()) : 0;
            const uint64_t sequence = edge.node ? 2 * edge.node->sequence : first ? 2 * first - 1 : 0;
            heap_.push_back({sequence, key});
            std::push_heap(heap_.begin(), heap_.end());
        }
        add_to(waiting.grads[edge.output], grad);
    }

    void run() {
        int until_check = 64;
        while (!heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end());
            const void* const key = heap_.back().second;
            heap_.pop_back();
            const auto place = waiting_.find(key);
            Waiting waiting = std::move(place->second);
            waiting_.erase(place);
            if (waiting.node)
                run_node(key, waiting);
            else
                reach_leaf(key, waiting);
            if (--until_check == 0) {
                check_interrupt();
                until_check = 64;
            }
        }
    }

    std::vector<T> found() { return std::move(found_); }

  private:
    static bool is_required(const Tensor& leaf) { return leaf.gradient() && leaf.gradient()->required; }

    /// Number of the first operation of this graph that reads a leaf; 0, which makes the leaf the last of
    /// all, if the graph has operations from before the last reset of that number.
    uint64_t first_use(const Gradient& leaf) const { return leaf.reset_at <= oldest_ ? leaf.first_use : 0; }

    struct Waiting {
        Ref<Node> node;
        T leaf;
        SmallVector<T> grads;
    };

    /// Adds in place where nobody else can see the sum.
    void add_to(T& sum, const T& grad) {
        if (!sum) {
            sum = grad;
            return;
        }
        static const Op& add_op = op_named("add");
        const bool alone = sum->ref_count() == 1 && !sum->deferred() && !grad->deferred() &&
                           sum->storage()->ref_count() == 1 && !sum->gradient();
        const T both[] = {sum, grad};
        if (options_.create_graph || !alone || !write_elementwise(add_op, both, *sum)) sum = sum + grad;
    }

    void keep_wanted(const void* key, const Waiting& waiting) {
        if (wanted_.empty()) return;
        const auto wanted = wanted_.find(key);
        if (wanted == wanted_.end()) return;
        for (const auto& [output, i] : wanted->second) {
            const T& grad = waiting.grads[output];
            if (grad) found_[i] = found_[i] ? found_[i] + grad : grad;
        }
    }

    void run_node(const void* key, Waiting& waiting) {
        Node& node = *waiting.node;
        for (const Node::Watch& watch : node.watches) {
            T& grad = waiting.grads[watch.output];
            if (!grad) continue;
            if (watch.hooks) grad = call_hooks(*watch.hooks, grad);
            if (const auto kept = watch.grad.lock(); kept && options_.accumulate)
                *kept = *kept ? *kept + grad : grad;
        }
        keep_wanted(key, waiting);
        if (add_to_slice(node, waiting.grads)) {
            if (!options_.retain_graph) node.release();
            return;
        }
        if (SmallVector<T>* const sums = node.sums()) *sums = take_sums(node);
        const SmallVector<T> grads = backward_of(node, waiting.grads);
        if (!options_.retain_graph) node.release();
        for (size_t i = 0; i < node.edges.size(); ++i)
            if (node.edges[i].wanted() && i < grads.size() && grads[i]) send(node.edges[i], grads[i]);
    }

    /// Gradients that the inputs of a node have so far, removed from the engine.
    SmallVector<T> take_sums(const Node& node) {
        SmallVector<T> sums(node.edges.size());
        for (size_t i = 0; i < sums.size(); ++i) {
            const Edge& edge = node.edges[i];
            const auto place =
                waiting_.find(edge.node ? static_cast<const void*>(edge.node.get()) : edge.leaf.get());
            if (edge.wanted() && place != waiting_.end())
                sums[i] = std::exchange(place->second.grads[size_t(edge.output)], T());
        }
        return sums;
    }

    /// The gradient of a slice is added where the slice lies in a gradient that is there already: no zeros
    /// are made around it.
    bool add_to_slice(const Node& node, const SmallVector<T>& grads) {
        static const Op *const slice_op = &op_named("slice"), *const add_op = &op_named("add");
        if (node.op != slice_op || !node.place.empty() || options_.create_graph || !grads[0] ||
            !node.edges[0].wanted())
            return false;
        const Edge& edge = node.edges[0];
        const auto place =
            waiting_.find(edge.node ? static_cast<const void*>(edge.node.get()) : edge.leaf.get());
        if (place == waiting_.end()) return false;
        const T& sum = place->second.grads[size_t(edge.output)];
        const bool alone = sum && sum->ref_count() == 1 && !sum->deferred() && sum->contiguous() &&
                           sum->storage()->ref_count() == 1 && !sum->gradient();
        if (!alone || sum->dtype() != grads[0]->dtype() || !(sum->device() == grads[0]->device()))
            return false;
        const GradMode off(false);
        const Params& params = *node.params;
        const T both[] = {slice(sum, params.a, params.b, params.c), grads[0]};
        grads[0]->storage();  // what waits runs now
        return write_elementwise(*add_op, both, *both[0]);
    }

    SmallVector<T> backward_of(Node& node, const SmallVector<T>& grads) {
        if (node.place.empty()) return node.backward(grads);
        SmallVector<T> results;
        try {
            results = node.backward(grads);
        } catch (const Error& error) {
            fail(error.kind, error.what(), "\nThe forward operation '", node.name(), "' ran here:\n",
                 node.place);
        }
        for (const T& result : results)
            if (result && is(result->dtype(), floats) && has_nan(result))
                fail(Kind::runtime, "[backward of '", node.name(),
                     "'] a gradient is NaN. The forward operation ran here:\n", node.place);
        return results;
    }

    void reach_leaf(const void* key, Waiting& waiting) {
        if (!is_required(*waiting.leaf)) return;  // a hook froze it
        Gradient& gradient = *waiting.leaf->gradient();
        if (!options_.retain_graph) {
            gradient.first_use = 0;
            gradient.reset_at = next_sequence.load(std::memory_order_relaxed);
        }
        T& grad = waiting.grads[0];
        if (gradient.hooks && options_.leaf_hooks) grad = call_hooks(*gradient.hooks, grad);
        keep_wanted(key, waiting);
        if (!options_.accumulate) return;
        if (!is_required(*waiting.leaf)) return;
        if (!gradient.grad) gradient.grad = std::make_shared<T>();
        *gradient.grad = *gradient.grad ? *gradient.grad + grad : own(grad);
        (*gradient.grad)->storage();  // a sum that waited would keep the gradients of all passes
        if (!gradient.after) return;
        grad = T();
        const auto all = gradient.after->all;  // a hook may remove itself
        for (const auto& [number, hook] : all) hook(waiting.leaf);
    }

    /// A gradient that shares its memory with nobody, since users write to it.
    T own(const T& grad) {
        if (options_.create_graph) return grad;
        const bool alone = grad->storage()->ref_count() == 1 && grad->contiguous();
        return alone ? grad->detach() : copy(grad);
    }

    const BackwardOptions& options_;
    const uint64_t oldest_;
    std::unordered_map<const void*, Waiting, std::hash<const void*>, std::equal_to<const void*>,
                       SmallAllocator<std::pair<const void* const, Waiting>>>
        waiting_;
    std::vector<std::pair<uint64_t, const void*>> heap_;
    std::unordered_map<const void*, std::vector<std::pair<int, size_t>>> wanted_;
    std::vector<T> found_;
};

T first_gradient(const T& output, const T& grad, size_t i) {
    const DeviceScope scope(output->device());
    if (grad) {
        require_shape(grad->shape() == output->shape(), "[backward] gradient ", i, " has shape ",
                      grad->shape(), ", its tensor ", output->shape());
        return to_device(cast(grad, output->dtype()), output->device());
    }
    require_shape(output->size() == 1, "[backward] tensor ", i, " has shape ", output->shape(),
                  "; only of a tensor with one element the gradient is known to be 1, so give one");
    return ones(output->shape(), output->dtype());
}

}  // namespace

std::vector<T> run_backward(const std::vector<T>& outputs, const std::vector<T>& grads,
                            const std::vector<T>& inputs, const BackwardOptions& options) {
    for (size_t i = 0; i < inputs.size(); ++i)
        if (!inputs[i]->tracked()) fail(Kind::runtime, "[grad] input ", i, " does not require gradients");
    const RoleScope gradients(Role::gradient);
    const AutocastPause as_recorded;  // gradients have the types of what was computed
    uint64_t oldest = next_sequence.load(std::memory_order_relaxed);
    for (const T& output : outputs)
        if (const Ref<Node> node = node_of(*output)) oldest = std::min(oldest, node->oldest);
    Engine engine(inputs, options, oldest);
    const GradMode mode(options.create_graph);
    for (size_t i = 0; i < outputs.size(); ++i) {
        const T& output = outputs[i];
        if (!output->tracked() && !node_of(*output))
            fail(Kind::runtime, "[backward] tensor ", i,
                 " was not computed from any tensor with requires_grad=True, or under no_grad()");
        const Edge edge = edge_to(output, next_sequence.load(std::memory_order_relaxed));
        engine.send(edge, first_gradient(output, i < grads.size() ? grads[i] : T(), i));
    }
    engine.run();
    std::vector<T> found = engine.found();
    for (size_t i = 0; i < found.size(); ++i)
        if (!found[i] && !options.allow_unused)
            fail(Kind::runtime, "[grad] nothing leads from the outputs to input ", i,
                 "; give allow_unused=True to get None for it");
    return found;
}

}  // namespace accelera::tensora
