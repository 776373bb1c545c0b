// Launches of the kernels in elements.cuh: elementwise operations, put together, indexing, pooling.
#include <algorithm>
#include <utility>

#include "tensora/core/basic_functions.h"
#include "tensora/cuda/kernels.h"

namespace accelera::tensora::cuda {

namespace {

/// How a kernel reaches an operand's elements.
enum class Access { number, dense, strided };

struct Operand {
    const Tensor* tensor;
    Access access = Access::strided;
    Dims steps;  // of a strided one, of the program's shape
};

Access access_to(const Tensor& tensor, const Dims& shape) {
    if (tensor.size() == 1 && tensor.device().is_cpu()) return Access::number;
    return tensor.contiguous() && tensor.shape() == shape ? Access::dense : Access::strided;
}

/// A kernel in the making.
class Builder {
  public:
    explicit Builder(const FusedProgram& program) : program_(program), shape_(program.shape) {
        for (const T& leaf : program.leaves) add(leaf.get());
        for (const FusedProgram::Step& step : program.steps)
            if (step.stored) add(step.stored);
        join_axes();
    }

    void run() {
        write();
        Arguments arguments;
        arguments.add(program_.shape.product());
        if (any_strided_) arguments.add(shape_);
        for (const Operand& operand : operands_) add_argument(operand, arguments);
        run_kernel(
            program_.device.index,
            {"elementwise", "tensora/cuda/elements.cuh", "struct Arguments {" + members_ + "};", body_},
            {blocks_for(program_.shape.product())}, arguments);
    }

    std::string source() {
        write();
        return "struct Arguments {" + members_ + "};\n" + body_ + "\n";
    }

    /// Bytes of the kernel's arguments; a kernel takes 4 KiB of them.
    bool fits() const {
        size_t nbytes = 8 + size_t(shape_.size()) * 8;
        for (const Operand& operand : operands_)
            nbytes += operand.access == Access::number ? 16 : 8 + size_t(operand.steps.size()) * 8;
        return nbytes <= 4000;
    }

  private:
    /// The members of the kernel's arguments, and its body.
    void write() {
        const int64_t n = program_.shape.product();
        members_ = " int64_t n;";
        body_ = "for (int64_t i = first_element(); i < a.n; i += all_threads()) {\n";
        if (any_strided_) {
            const std::string rank = std::to_string(shape_.size());
            members_ += text(" Extents<", rank, "> shape;");
            body_ += text("const Place<", rank, n < INT32_MAX ? ", uint32_t" : ", int64_t",
                          "> place(a.shape, i);\n");
        }
        for (size_t i = 0; i < operands_.size(); ++i) declare(i);
        for (size_t i = 0; i < program_.steps.size(); ++i) add_step(i);
        body_ += '}';
    }

    void add(const Tensor* tensor) {
        Operand operand{tensor, access_to(*tensor, program_.shape), {}};
        if (operand.access == Access::strided) {
            any_strided_ = true;
            operand.steps = broadcast_layout(*tensor, program_.shape, "elementwise").strides;
        }
        operands_.push_back(operand);
    }

    /// Axes that lie as one in all operands are one.
    void join_axes() {
        const Dims given = shape_;
        std::vector<Dims> before;
        for (const Operand& operand : operands_) before.push_back(operand.steps);
        shape_ = {};
        for (Operand& operand : operands_) operand.steps = {};
        for (int axis = 0; axis < given.size(); ++axis) {
            if (given[axis] == 1) continue;
            const int last = shape_.size() - 1;
            bool as_one = last >= 0;
            for (size_t k = 0; k < operands_.size() && as_one; ++k)
                as_one = operands_[k].access != Access::strided ||
                         operands_[k].steps[last] == before[k][axis] * given[axis];
            append_axis(given[axis], as_one);
            for (size_t k = 0; k < operands_.size(); ++k)
                if (operands_[k].access == Access::strided)
                    operands_[k].steps[shape_.size() - 1] = before[k][axis];
        }
        if (shape_.empty()) append_axis(1, false);
    }

    void append_axis(int64_t extent, bool as_one) {
        if (as_one) {
            shape_[shape_.size() - 1] *= extent;
            return;
        }
        shape_.push_back(extent);
        for (Operand& operand : operands_)
            if (operand.access == Access::strided) operand.steps.push_back(0);
    }

    std::string element(size_t i) const {
        return operands_[i].access == Access::dense ? text("a.p", i, "[i]")
                                                    : text("a.p", i, "[place.in(a.s", i, ")]");
    }

    void declare(size_t i) {
        const Operand& operand = operands_[i];
        const char* const type = type_name(operand.tensor->dtype());
        const bool is_leaf = i < program_.leaves.size();
        if (operand.access == Access::number) {
            members_ += text(" Number p", i, ";");
            body_ += text("const ", type, " x", i, " = a.p", i, ".as<", type, ">();\n");
            return;
        }
        members_ += text(is_leaf ? " const " : " ", type, "* p", i, ";");
        if (operand.access == Access::strided) members_ += text(" Steps<", shape_.size(), "> s", i, ";");
        if (is_leaf) body_ += text("const ", type, " x", i, " = ", element(i), ";\n");
    }

    static void add_argument(const Operand& operand, Arguments& arguments) {
        const Tensor& tensor = *operand.tensor;
        if (operand.access == Access::number) {
            char bytes[16] = {};
            std::memcpy(bytes, tensor.bytes(), size_t(size_of(tensor.dtype())));
            arguments.add_bytes(bytes, 16, 8);
            return;
        }
        arguments.add_tensor(&tensor);
        if (operand.access == Access::strided) arguments.add(operand.steps);
    }

    std::string source(int from) const { return from >= 0 ? text('v', from) : text('x', -1 - from); }

    void add_step(size_t i) {
        const FusedProgram::Step& step = program_.steps[i];
        std::vector<std::string> inputs;
        for (int k = 0; k < step.n_sources; ++k) inputs.push_back(source(step.sources[k]));
        body_ += text("const ", type_name(step.result), " v", i, " = ",
                      formula_text(step.formula, step.operands, step.result, inputs));
        body_ += ";\n";
        if (step.stored)
            body_ += text(element(program_.leaves.size() + size_t(n_stored_++)), " = v", i, ";\n");
    }

    const FusedProgram& program_;
    Dims shape_;
    std::vector<Operand> operands_;  // leaves, then results that are stored
    bool any_strided_ = false;
    int n_stored_ = 0;
    std::string members_, body_;
};

/// A one-step program with this formula.
FusedProgram single(const char* formula, DType operands, const T& leaf, const Tensor& out) {
    FusedProgram program{out.device(), out.shape(), {leaf}, {}};
    program.steps.push_back({formula, operands, out.dtype(), {-1, 0, 0}, 1, &out});
    return program;
}

}  // namespace

std::string formula_text(const char* formula, DType operands, DType result,
                         std::span<const std::string> inputs) {
    if (std::strcmp(formula, "where") == 0) return text(inputs[0], " ? ", inputs[1], " : ", inputs[2]);
    std::string all;
    for (const std::string& input : inputs) all += (all.empty() ? "" : ", ") + input;
    if (std::strcmp(formula, "cast") == 0) return text("cast_value<", type_name(result), ">(", all, ")");
    return text("value<", formula, "_formula, ", type_name(operands), ">(", all, ")");
}

std::string fused_source(const FusedProgram& program) { return Builder(program).source(); }

void run_fused(const FusedProgram& given) {
    if (given.shape.product() == 0) return;
    FusedProgram program = given;
    Builder builder(program);
    if (builder.fits()) return builder.run();
    for (T& leaf : program.leaves) leaf = contiguous(leaf->size() == 1 ? leaf : expand(leaf, program.shape));
    Builder(program).run();
}

void copy_on_device(const Tensor& from, const Tensor& to) {
    if (from.dtype() == to.dtype() && from.contiguous() && to.contiguous() && from.shape() == to.shape() &&
        from.device() == to.device())
        return copy_within(to.device().index, to.device_bytes(), from.device_bytes(),
                           from.size() * size_of(from.dtype()));
    const T leaf(const_cast<Tensor*>(&from));
    run_fused(single("cast", from.dtype(), leaf, to));
}

void fill_on_device(const Tensor& out) {
    fill_bytes(out.device().index, out.device_bytes(), 0, out.size() * size_of(out.dtype()));
}

// --- indexing ----------------------------------------------------------------------------------------------

namespace {

/// Unsigned integers of the size of an element, as which it is moved.
const char* moved_as(DType dtype) {
    switch (size_of(dtype)) {
        case 1:
            return "uint8_t";
        case 2:
            return "uint16_t";
        case 4:
            return "uint32_t";
        case 8:
            return "uint64_t";
        default:
            return "Wide";
    }
}

/// Extents before an axis, of it, and behind it.
struct Sides {
    int64_t outer = 1, extent, inner = 1;
    Sides(const Dims& shape, int axis) : extent(shape[axis]) {
        for (int i = 0; i < axis; ++i) outer *= shape[i];
        for (int i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
    }
};

}  // namespace

void take(Call& call) {
    const T x = contiguous(call.in[0]), index = contiguous(call.in[1]);
    const Tensor& out = *call.out[0];
    const Sides sides(x->shape(), call.params.mode);
    Arguments arguments;
    arguments.add(out.size()).add(sides.extent).add(index->size()).add(sides.inner);
    arguments.add_tensor(x.get()).add_tensor(index.get()).add_tensor(&out);
    const char* const type = moved_as(x->dtype());
    run_kernel(call.out[0]->device().index,
               {"take", "tensora/cuda/elements.cuh",
                text("struct Arguments { int64_t size, extent, n, inner; const ", type,
                     "* x; const int64_t* at; ", type, "* out; };"),
                "take_slices(a.size, a.extent, a.n, a.inner, a.x, a.at, a.out);"},
               {blocks_for(out.size())}, arguments);
}

void put(Call& call) {
    const Tensor& out = *call.out[0];
    copy_on_device(call.input(0), out);
    const T values = contiguous(cast(call.in[2], out.dtype())), index = contiguous(call.in[1]);
    const Sides sides(out.shape(), call.params.mode);
    Arguments arguments;
    arguments.add(sides.outer).add(sides.extent).add(index->size()).add(sides.inner);
    arguments.add_tensor(values.get()).add_tensor(index.get()).add_tensor(&out);
    const char* const type = moved_as(out.dtype());
    run_kernel(call.out[0]->device().index,
               {"put", "tensora/cuda/elements.cuh",
                text("struct Arguments { int64_t outer, extent, n, inner; const ", type,
                     "* values; const int64_t* at; ", type, "* out; };"),
                "put_slices(a.outer, a.extent, a.n, a.inner, a.values, a.at, a.out);"},
               {blocks_for(sides.outer * sides.inner)}, arguments);
}

void take_add(Call& call) {
    const Tensor& out = *call.out[0];
    fill_on_device(out);
    const T values = contiguous(call.in[0]), index = contiguous(call.in[1]);
    const int64_t n = index->size();
    if (n == 0 || out.size() == 0) return;
    // The order is found on the CPU: the index is small beside the values.
    const T on_cpu = to_device(index, cpu);
    const int64_t* const at = on_cpu->data<int64_t>();
    const DeviceScope scope(cpu);
    const T order = Tensor::empty({n}, DType::i64);
    int64_t* const sorted = order->data<int64_t>();
    for (int64_t i = 0; i < n; ++i) sorted[i] = i;
    std::stable_sort(sorted, sorted + n, [&](int64_t a, int64_t b) { return at[a] < at[b]; });
    std::vector<int64_t> begins;
    for (int64_t i = 0; i < n; ++i)
        if (i == 0 || at[sorted[i]] != at[sorted[i - 1]]) begins.push_back(i);
    const T starts = Tensor::empty({int64_t(begins.size())}, DType::i64);
    std::copy(begins.begin(), begins.end(), starts->data<int64_t>());
    const T order_there = to_device(order, out.device()), starts_there = to_device(starts, out.device());
    const Sides sides(out.shape(), call.params.mode);
    const auto runs = int64_t(begins.size());
    Arguments arguments;
    arguments.add(sides.outer).add(sides.extent).add(n).add(sides.inner).add(runs);
    arguments.add_tensor(values.get()).add_tensor(index.get());
    arguments.add_tensor(order_there.get()).add_tensor(starts_there.get()).add_tensor(&out);
    const char* const type = type_name(out.dtype());
    run_kernel(
        call.out[0]->device().index,
        {"take_add", "tensora/cuda/elements.cuh",
         text("struct Arguments { int64_t outer, extent, n, inner, runs; const ", type,
              "* values; const int64_t *at, *order, *starts; ", type, "* out; };"),
         "add_slices(a.outer, a.extent, a.n, a.inner, a.runs, a.values, a.at, a.order, a.starts, a.out);"},
        {blocks_for(sides.outer * runs * sides.inner)}, arguments);
}

void take_along(Call& call) {
    const T& x = call.in[0];
    const T index = contiguous(call.in[1]);
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    const int axis = call.params.mode;
    Dims steps = x->strides(), shape = index->shape();
    steps[axis] = 0;
    Arguments arguments;
    arguments.add(out.size()).add(shape).add(steps).add(x->strides()[axis]);
    arguments.add_tensor(x.get()).add_tensor(index.get()).add_tensor(&out);
    const char* const type = moved_as(out.dtype());
    const int rank = shape.size();
    run_kernel(
        call.out[0]->device().index,
        {"take_along", "tensora/cuda/elements.cuh",
         text("struct Arguments { int64_t size; Extents<", rank, "> shape; Steps<", rank,
              "> steps; int64_t axis_step; const ", type, "* x; const int64_t* at; ", type, "* out; };"),
         "take_along(a.size, a.shape, a.steps, a.axis_step, a.x, a.at, a.out);"},
        {blocks_for(out.size())}, arguments);
}

namespace {

/// Copy input 0 and join input 2 to it at the places of input 1, along an axis.
void join_along(Call& call, const char* join) {
    const Tensor& out = *call.out[0];
    copy_on_device(call.input(0), out);
    const T values = contiguous(cast(call.in[2], out.dtype())), index = contiguous(call.in[1]);
    if (index->size() == 0) return;
    const int axis = call.params.mode;
    Dims lines = index->shape();
    lines[axis] = 1;
    Arguments arguments;
    arguments.add(lines).add(out.strides()).add(values->strides()).add(index->shape()[axis]);
    arguments.add(out.strides()[axis]).add(values->strides()[axis]);
    arguments.add_tensor(values.get()).add_tensor(index.get()).add_tensor(&out);
    const char* const type = type_name(out.dtype());
    const std::string rank = text('<', lines.size(), '>');
    run_kernel(call.out[0]->device().index,
               {call.op.name, "tensora/cuda/elements.cuh",
                text("struct Arguments { Extents", rank, " lines; Steps", rank, " out_steps; Steps", rank,
                     " value_steps; int64_t n, out_step, value_step; const ", type,
                     "* values; const int64_t* at; ", type, "* out; };"),
                text("join_along<", join,
                     ">(a.lines, a.out_steps, a.value_steps, a.n, a.out_step, a.value_step, a.values, a.at, "
                     "a.out);")},
               {blocks_for(lines.product())}, arguments);
}

}  // namespace

void scatter_add(Call& call) { join_along(call, "Sum"); }
void scatter_reduce(Call& call) {
    const auto kind = Scattered(call.params.a[0]);
    join_along(call, kind == Scattered::prod ? "Product" : kind == Scattered::max ? "Largest" : "Smallest");
}

// --- sorting and searching ---------------------------------------------------------------------------------

void searchsorted(Call& call) {
    const DType dtype = promote(call.input(0).dtype(), call.input(1).dtype());
    const T sorted = contiguous(cast(call.in[0], dtype)), values = contiguous(cast(call.in[1], dtype));
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    Arguments arguments;
    arguments.add(out.size()).add(sorted->shape().back());
    arguments.add(sorted->dims() > 1 ? values->shape().back() : values->size()).add(call.params.flag);
    arguments.add_tensor(sorted.get()).add_tensor(values.get()).add_tensor(&out);
    const char* const type = type_name(dtype);
    run_kernel(out.device().index,
               {"searchsorted", "tensora/cuda/elements.cuh",
                text("struct Arguments { int64_t size, n, each; bool right; const ", type,
                     " *sorted, *values; int64_t* out; };"),
                "search_sorted(a.size, a.n, a.each, a.right, a.sorted, a.values, a.out);"},
               {blocks_for(out.size())}, arguments);
}

void argsort(Call& call) {
    const T x = contiguous(call.in[0]);
    if (call.out[0]->size() == 0) return;
    const int64_t n = x->shape().back();
    if (n == 1) return fill_on_device(*call.out[0]);
    T order, next = Tensor::empty(x->shape(), DType::i64), spare = Tensor::empty(x->shape(), DType::i64);
    const char* const type = type_name(x->dtype());
    for (int64_t width = 1; width < n; width *= 2) {
        Arguments arguments;
        arguments.add(x->size()).add(n).add(width);
        arguments.add_tensor(x.get()).add_tensor(order.get()).add_tensor(next.get());
        run_kernel(next->device().index,
                   {"argsort", "tensora/cuda/elements.cuh",
                    text("struct Arguments { int64_t size, n, width; const ", type,
                         "* x; const int64_t* order; int64_t* out; };"),
                    text("merge_runs<", type, ", ", call.params.flag ? "true" : "false",
                         ">(a.size, a.n, a.width, a.x, a.order, a.out);")},
                   {blocks_for(x->size())}, arguments);
        order = std::exchange(next, order ? order : spare);
    }
    copy_on_device(*narrow(order, x->dims() - 1, 0, call.params.a[0]), *call.out[0]);
}

// --- pooling -----------------------------------------------------------------------------------------------

namespace {

/// The `part`-th of the lists that the third parameter of pools has, one number for each extent.
Dims part_of(const Params& params, int part) {
    const int n = params.a.size();
    return Dims(params.c.begin() + int64_t(part) * n, n);
}

/// Extents of images and results, then kernel, stride, padding and dilation.
void add_windows(Arguments& arguments, const Params& params) {
    add_extents(arguments, part_of(params, 3), 0, 1);
    add_extents(arguments, part_of(params, 2), 0, 1);
    add_extents(arguments, params.a, 0, 1);
    add_extents(arguments, params.b, 0, 1);
    add_extents(arguments, part_of(params, 0), 0, 0);
    add_extents(arguments, part_of(params, 1), 0, 1);
}

void run_pool(Call& call, const char* function) {
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    const T x = contiguous(call.in[0]);
    const Params& params = call.params;
    Arguments arguments;
    arguments.add(x->shape()[0] * x->shape()[1]);
    add_windows(arguments, params);
    arguments.add(params.mode == 1).add(params.flag).add(params.x);
    arguments.add_tensor(x.get()).add_tensor(&out).add_tensor(call.out[1].get());
    run_kernel(out.device().index,
               {call.op.name, "tensora/cuda/elements.cuh",
                text("using Arguments = Pool<", type_name(x->dtype()), ">;"), text(function, "(a);")},
               {blocks_for(out.size())}, arguments);
}

/// Windows of images as columns, or back: `planes` images.
void run_windows(Call& call, int64_t planes, const char* function) {
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    const T x = contiguous(call.in[0]);
    Arguments arguments;
    arguments.add(planes).add(int64_t(1)).add(int64_t(1)).add(int64_t(1));
    add_windows(arguments, call.params);
    arguments.add_tensor(x.get()).add_tensor(nullptr).add_tensor(nullptr).add_tensor(&out);
    run_kernel(out.device().index,
               {call.op.name, "tensora/cuda/elements.cuh",
                text("using Arguments = Convolution<", type_name(x->dtype()), ">;"), text(function, "(a);")},
               {blocks_for(out.size())}, arguments);
}

}  // namespace

void max_pool(Call& call) { run_pool(call, "max_pool"); }
void avg_pool(Call& call) { run_pool(call, "avg_pool"); }
void avg_pool_back(Call& call) { run_pool(call, "avg_pool_back"); }

void unfold(Call& call) {
    run_windows(call, call.input().shape()[0] * call.input().shape()[1], "unfold_windows");
}
void fold(Call& call) {
    run_windows(call, call.out[0]->shape()[0] * call.out[0]->shape()[1], "fold_windows");
}

}  // namespace accelera::tensora::cuda
