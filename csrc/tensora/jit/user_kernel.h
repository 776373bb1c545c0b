#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensora/jit/program.h"

namespace accelera::tensora {

/// Types of a kernel's inputs, and the length of a row where that matters.
struct KernelSignature {
    std::vector<DType> types;
    int64_t length = 0;
    friend auto operator<=>(const KernelSignature&, const KernelSignature&) = default;
};

/// Operation that a program defines while it runs, as an entry of the op table. It stays, as a graph may
/// refer to it.
class UserKernel {
  public:
    static constexpr int most_inputs = 8;
    static constexpr int together = 3;  ///< so many gradients, at most, are computed by one entry

    /// What Python is asked for when it is needed first.
    struct Source {
        /// The program that the function makes of inputs of this signature.
        std::function<std::shared_ptr<CapturedProgram>(const KernelSignature&)> program;
        /// Kernel of gradients (see `UserKernel::gradient`), from the inputs and the gradients of the
        /// outputs.
        std::function<UserKernel*(int group)> gradient;
    };
    UserKernel(const UserKernel&) = delete;
    virtual ~UserKernel() = default;

    const Op& op() const { return *op_; }
    T run(const std::vector<T>& inputs) { return apply(*op_, inputs, no_params); }
    /// A line for each operation on inputs of this signature.
    virtual std::string words(const KernelSignature& signature) = 0;
    /// Text of the CUDA kernel.
    virtual std::string cuda_source(const KernelSignature& signature) = 0;
    /// Types of the results.
    virtual std::vector<DType> results(const KernelSignature& signature) = 0;
    /// Kernel of the gradients of all inputs where they are few (`together`), or else of input `group`.
    UserKernel& gradient(int group);

  protected:
    /// Enters it into the table under this name, or with a number behind it where there is such an entry.
    UserKernel(const std::string& name, int inputs, int outputs, Source source);
    /// Makes the outputs' shapes and types.
    virtual void shape(Call& call) = 0;
    virtual void compute(Call& call) = 0;
    /// Gradient of an output as an input of the gradients' kernel; `dims`: of the broadcast inputs.
    virtual T slope(const T& grad, int dims) const { return (void)dims, grad; }
    std::shared_ptr<CapturedProgram> program(const KernelSignature& signature) const {
        return source_.program(signature);
    }
    const std::string& name() const { return name_; }

  private:
    static UserKernel& of(const Op& op);
    static void vjp(Backward& c);

    std::string name_;
    const Op* op_;
    Source source_;
    std::map<int, UserKernel*> gradients_;
};

std::vector<DType> types_of(std::span<const T> tensors);

}  // namespace accelera::tensora
