// Captured programs, as Python sees them.
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <set>

#include "tensora/bindings/convert.h"
#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/core/budget.h"
#include "tensora/jit/arguments.h"
#include "tensora/jit/capture.h"
#include "tensora/jit/element_kernel.h"
#include "tensora/jit/tile_kernel.h"

namespace accelera::tensora {

namespace {

/// Operations that lead to these tensors.
std::vector<Ref<Node>> graph_of(const std::vector<T>& outputs) {
    std::vector<Ref<Node>> nodes;
    std::set<const Node*> seen;
    const auto meet = [&](const Ref<Node>& node) {
        if (node && seen.insert(node.get()).second) nodes.push_back(node);
    };
    for (const T& output : outputs) meet(node_of(*output));
    for (size_t i = 0; i < nodes.size(); ++i) {
        // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): `meet` may move the list
        const Ref<Node> node = nodes[i];
        for (const Edge& edge : node->edges) meet(edge.node);
    }
    return nodes;
}

bool has_graph(const T& x) {
    const auto nodes = graph_of({x});
    return !nodes.empty() &&
           std::none_of(nodes.begin(), nodes.end(), [](const Ref<Node>& node) { return node->released; });
}

/// Whether Python is called with a gradient of what these operations compute.
bool has_hooks(const std::vector<T>& outputs) {
    const auto nodes = graph_of(outputs);
    return std::any_of(nodes.begin(), nodes.end(), [](const Ref<Node>& node) {
        // Backward hooks of modules are operations of their own.
        if (!node->op && node->name().ends_with("Hook")) return true;
        return std::any_of(node->watches.begin(), node->watches.end(),
                           [](const Node::Watch& watch) { return watch.hooks && !watch.hooks->all.empty(); });
    });
}

std::vector<T> leaves_of(const std::vector<T>& outputs) {
    std::vector<T> leaves;
    std::set<const Tensor*> seen;
    for (const Ref<Node>& node : graph_of(outputs))
        for (const Edge& edge : node->edges)
            if (edge.leaf && seen.insert(edge.leaf.get()).second) leaves.push_back(edge.leaf);
    return leaves;
}

/// How many operations that lead to these tensors read each leaf.
std::vector<int64_t> uses_of(const std::vector<T>& outputs, const std::vector<T>& leaves) {
    std::vector<int64_t> uses(leaves.size());
    for (const Ref<Node>& node : graph_of(outputs))
        for (const Edge& edge : node->edges)
            for (size_t i = 0; edge.leaf && i < leaves.size(); ++i) uses[i] += edge.leaf == leaves[i];
    return uses;
}

nb::dict params_of(const Params& params) {
    nb::dict result;
    result["a"] = params.a;
    result["b"] = params.b;
    result["c"] = params.c;
    result["x"] = params.x;
    result["y"] = params.y;
    result["dtype"] = params.dtype;
    result["flag"] = params.flag;
    result["mode"] = params.mode;
    return result;
}

nb::object operand_of(const CapturedOperand& operand) {
    if (operand.buffer < 0) return nb::none();
    return nb::make_tuple(operand.buffer, operand.dtype, operand.layout.shape, operand.layout.strides,
                          operand.layout.offset);
}

template <typename Operands>
nb::list operands_of(const Operands& operands) {
    nb::list result;
    for (const CapturedOperand& operand : operands) result.append(operand_of(operand));
    return result;
}

/// Of programs that are not fused.
nb::list steps_of(const CapturedProgram& program) {
    nb::list result;
    for (CapturedStep step : program.steps) {
        nb::dict one;
        one["name"] = step.op->name;
        one["params"] = params_of(step.params);
        one["inputs"] = operands_of(step.inputs);
        one["outputs"] = operands_of(step.outputs);
        one["draw"] = step.draw;
        step.in_place = false;  // the formula is the same
        one["computed_in"] = formula_of(step, true).operands;
        result.append(one);
    }
    return result;
}

nb::list buffers_of(const CapturedProgram& program) {
    constexpr const char* kinds[] = {"argument", "outside", "gradient", "constant", "computed"};
    nb::list result;
    for (const CapturedBuffer& buffer : program.buffers)
        result.append(nb::make_tuple(kinds[int(buffer.kind)], buffer.nbytes, buffer.argument, buffer.tensor));
    return result;
}

nb::list parts_of(const CapturedProgram& program) {
    nb::list result;
    for (const CapturedProgram::Part& part : program.parts) {
        nb::list gradients;
        for (const CapturedGradient& one : part.gradients)
            gradients.append(nb::make_tuple(one.leaf, one.argument, one.was_none, operand_of(one.value)));
        result.append(nb::make_tuple(part.end, gradients));
    }
    return result;
}

nb::list results_of(const CapturedProgram& program) {
    nb::list result;
    for (const CapturedResult& one : program.results)
        result.append(nb::make_tuple(operand_of(one.value), one.tensor, one.argument));
    return result;
}

struct CaptureHandle {
    std::unique_ptr<Capture> capture;
};
struct ReplayHandle {
    Ref<Replay> replay;
};

}  // namespace

namespace {

/// Python's function that may be asked for on any thread, as by a backward pass.
std::shared_ptr<nb::object> kept(nb::object object) {
    return {new nb::object(std::move(object)), [](nb::object* owned) {
                const nb::gil_scoped_acquire gil;
                delete owned;
            }};
}

UserKernel::Source source_of(nb::object program, nb::object gradient) {
    const auto tracer = kept(std::move(program));
    const auto maker = kept(std::move(gradient));
    return {
        [tracer](const KernelSignature& signature) {
            // What calls the kernel may be captured, cast, inside a budget or on a device; its definition is
            // not.
            const CapturePause pause;
            const DeviceScope on_cpu(cpu);
            const AutocastPause as_given;
            const StepBudget::Outside outside;
            const nb::gil_scoped_acquire gil;
            return nb::cast<std::shared_ptr<CapturedProgram>>((*tracer)(signature.types, signature.length));
        },
        [maker](int group) {
            const nb::gil_scoped_acquire gil;
            return nb::cast<UserKernel*>((*maker)(group));
        }};
}

UserKernel* new_kernel(const std::string& name, bool tile, int inputs, int outputs, nb::object program,
                       nb::object gradient) {
    UserKernel::Source source = source_of(std::move(program), std::move(gradient));
    if (tile) return new TileKernel(name, inputs, outputs, std::move(source));
    return new ElementKernel(name, inputs, outputs, std::move(source));
}

/// Simplified, but not fused.
void simplify(CapturedProgram& program) {
    fold_constants(program);
    rename_overwritten(program);
    share_common_steps(program);
    remove_dead_steps(program);
}

/// Fused, in as little memory as can be.
void fuse(CapturedProgram& program) {
    fuse_steps(program);
    write_over_operands(program);
    join_epilogues(program);
}

void bind_kernels(nb::module_& module) {
    nb::class_<UserKernel>(module, "UserKernel", "Entry of the op table that a program has defined.")
        .def_prop_ro("name", [](const UserKernel& self) { return std::string(self.op().name); })
        .def("run", &UserKernel::run)
        .def("words", [](UserKernel& self, const std::vector<DType>& types,
                         int64_t length) { return self.words({types, length}); })
        .def("cuda_source", [](UserKernel& self, const std::vector<DType>& types,
                               int64_t length) { return self.cuda_source({types, length}); })
        .def("results", [](UserKernel& self, const std::vector<DType>& types,
                           int64_t length) { return self.results({types, length}); })
        .def("gradient", [](UserKernel& self) { return &self.gradient(0); }, nb::rv_policy::reference);
    module.attr("gradients_together") = int(UserKernel::together);
    // Entries stay in the table, and so do their kernels.
    module.def("new_kernel", new_kernel, nb::rv_policy::reference);
}

}  // namespace

void bind_jit(nb::module_& module) {
    bind_kernels(module);
    module.def("has_graph", has_graph, "Whether gradients can flow back from the tensor.");
    module.def("leaves_of", leaves_of, "Leaves of the graph of these tensors that collect gradients.");
    module.def("has_hooks", has_hooks, "Whether gradients between the leaves and the outputs have hooks.");
    module.def(
        "gradients_of",
        [](const std::vector<T>& outputs, const std::vector<T>& grads, const std::vector<T>& inputs) {
            BackwardOptions options;
            options.retain_graph = options.allow_unused = true;
            options.accumulate = options.leaf_hooks = false;
            return run_backward(outputs, grads, inputs, options);
        },
        "Gradients of leaves, before their hooks; None where nothing leads to a leaf. The graph is kept.");
    module.def("uses_of", uses_of, "How many operations that lead to the outputs read each leaf.");
    module.def(
        "holds",
        [](const T& condition) {
            const CapturePause pause;
            return condition->storage()->lacks_contents() || nb::cast<bool>(scalar_to_python(*condition));
        },
        "Whether a condition of arguments is true: of a captured function it is checked once, and contents "
        "that were not computed pass.");
    module.def(
        "address",
        [](const T& x) {
            return reinterpret_cast<uintptr_t>(x->device().is_cpu() ? x->bytes() : x->device_bytes());
        },
        "Of the first element.");
    module.def(
        "storage_elements",
        [](const T& x, DType dtype, int64_t first, int64_t n) {
            return T(new Tensor(x->storage(), {{n}, {1}, first}, dtype));
        },
        "Elements of the memory that a tensor lies in, in a row.");
    module.def("storage_id", [](const T& x) { return reinterpret_cast<uintptr_t>(x->storage().get()); });
    module.def(
        "signature_of",
        [](const std::vector<T>& arguments) -> nb::object {
            const auto signature = signature_of(arguments);
            if (!signature) return nb::none();
            return nb::bytes(signature->data(), signature->size());
        },
        "Key of the arguments of a captured function, or None if no captured program can express it.");
    module.def(
        "is_borrowed", [](const T& x) { return x->storage()->borrowed(); },
        "Whether another library owns the memory.");
    module.def("any_overlap", any_overlap,
               "Whether a tensor or its gradient may have an element in common with an argument.");
    module.def(
        "is_eager_only", [] { return StepBudget::here() || is_recording() || autocasting || anomaly(); },
        "Whether a captured program must not take an operation's place now.");
    nb::class_<CapturedProgram>(module, "CapturedProgram", "Steps of the op table that a function took.")
        .def("simplify", simplify)
        .def("fuse", fuse)
        .def("place", place_buffers)
        .def("reads_hold", &CapturedProgram::reads_hold)
        .def("steps", steps_of)
        .def("buffers", buffers_of)
        .def("parts", parts_of)
        .def("results", results_of)
        .def_prop_ro("n_steps", [](const CapturedProgram& self) { return self.steps.size(); })
        .def_prop_ro("arena_bytes", &CapturedProgram::arena_bytes)
        .def_ro("kept_bytes", &CapturedProgram::kept_bytes)
        .def_ro("workspace_bytes", &CapturedProgram::workspace_bytes)
        .def_prop_ro("least_bytes", &CapturedProgram::least_bytes)
        .def_prop_ro("peak_bytes", &CapturedProgram::peak_bytes)
        .def("__str__", &CapturedProgram::words);
    nb::class_<CaptureHandle>(module, "Capture", "Record of what the operations of this thread do.")
        .def("__init__",
             [](CaptureHandle* self, const std::vector<T>& arguments) {
                 if (Capture::here()) fail(Kind::runtime, "[jit] this thread captures a function already");
                 new (self) CaptureHandle{std::make_unique<Capture>(arguments)};
             })
        .def("draw",
             [](CaptureHandle& self, uint64_t seed, uint64_t number) { self.capture->draw(seed, number); })
        .def("add_arguments", [](CaptureHandle& self,
                                 const std::vector<T>& arguments) { self.capture->add_arguments(arguments); })
        .def("end_part", [](CaptureHandle& self) { self.capture->end_part(); })
        .def("begin_alternatives", [](CaptureHandle& self) { self.capture->begin_alternatives(); })
        .def("pause", [](CaptureHandle&) { thread_state.capture = nullptr; })
        .def("resume", [](CaptureHandle& self) { thread_state.capture = self.capture.get(); })
        .def("finish",
             [](CaptureHandle& self, const std::vector<T>& results) {
                 auto program = self.capture->finish(results);
                 self.capture.reset();
                 return program;
             })
        .def("abandon", [](CaptureHandle& self) { self.capture.reset(); });
    nb::class_<ReplayHandle>(module, "Replay", "Calls of a captured program.")
        .def("__init__",
             [](ReplayHandle* self, std::shared_ptr<CapturedProgram> program, bool graphs) {
                 new (self) ReplayHandle{Ref<Replay>(new Replay(std::move(program), graphs))};
             })
        .def("fits", [](const ReplayHandle& self,
                        const std::vector<T>& arguments) { return self.replay->fits(arguments); })
        .def("begin",
             [](ReplayHandle& self, const std::vector<T>& arguments,
                const std::vector<std::pair<uint64_t, uint64_t>>& draws) {
                 self.replay->begin(arguments, draws);
             })
        .def("skip_part", [](ReplayHandle& self, size_t n_arguments) { self.replay->skip_part(n_arguments); })
        .def("run_part", [](ReplayHandle& self) { self.replay->run_part(); })
        .def("add_arguments", [](ReplayHandle& self,
                                 const std::vector<T>& arguments) { self.replay->add_arguments(arguments); })
        .def("check_unchanged", [](const ReplayHandle& self) { self.replay->check_unchanged(); })
        .def("results",
             [](ReplayHandle& self, size_t first, size_t end) { return self.replay->results(first, end); })
        .def("end", [](ReplayHandle& self) { self.replay->end(); })
        .def_prop_ro("graph_steps", [](const ReplayHandle& self) { return self.replay->graph_steps(); })
        .def_prop_ro("graph_bytes", [](const ReplayHandle& self) { return self.replay->graph_bytes(); });
}

}  // namespace accelera::tensora
