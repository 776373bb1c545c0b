// Kernels put together from elementwise operations.
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"

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
        for (size_t i = 0; i < operands_.size(); ++i) declare(i);
        for (size_t i = 0; i < program_.steps.size(); ++i) add_step(i);
        const int64_t n = program_.shape.product();
        Arguments arguments;
        arguments.add(n);
        std::string declarations = "struct Arguments { int64_t n;";
        std::string body = "for (int64_t i = first_element(); i < a.n; i += all_threads()) {\n";
        if (any_strided_) {
            arguments.add(shape_);
            const std::string rank = std::to_string(shape_.size());
            declarations += text(" Extents<", rank, "> shape;");
            body += text("const Place<", rank, n < INT32_MAX ? ", uint32_t" : ", int64_t",
                         "> place(a.shape, i);\n");
        }
        for (const Operand& operand : operands_) add_argument(operand, arguments);
        run_kernel(
            program_.device.index,
            {"elementwise", "tensora/cuda/elements.cuh", declarations + members_ + "};", body + body_ + "}"},
            {(n + 255) / 256, 256}, arguments);
    }

    /// Bytes of the kernel's arguments; a kernel takes 4 KiB of them.
    bool fits() const {
        size_t nbytes = 8 + size_t(shape_.size()) * 8;
        for (const Operand& operand : operands_)
            nbytes += operand.access == Access::number ? 16 : 8 + size_t(operand.steps.size()) * 8;
        return nbytes <= 4000;
    }

  private:
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
        std::string inputs;
        for (int k = 0; k < step.n_sources; ++k) inputs += text(k ? ", " : "", source(step.sources[k]));
        body_ += text("const ", type_name(step.result), " v", i, " = ");
        if (std::strcmp(step.formula, "where") == 0)
            body_ +=
                text(source(step.sources[0]), " ? ", source(step.sources[1]), " : ", source(step.sources[2]));
        else if (std::strcmp(step.formula, "cast") == 0)
            body_ += text("cast_value<", type_name(step.result), ">(", inputs, ")");
        else
            body_ += text("value<", step.formula, "_formula, ", type_name(step.operands), ">(", inputs, ")");
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

}  // namespace accelera::tensora::cuda
