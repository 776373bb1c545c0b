#pragma once

#include <map>
#include <mutex>

#include "tensora/core/fused_loop.h"
#include "tensora/jit/user_kernel.h"

namespace accelera::tensora {

/// Function of single elements as an operation: one fused loop for each combination of the inputs' types.
class ElementKernel final : public UserKernel {
  public:
    ElementKernel(const std::string& name, int inputs, int outputs, Source source);
    std::string words(const KernelSignature& signature) override;
    std::string cuda_source(const KernelSignature& signature) override;
    std::vector<DType> results(const KernelSignature& signature) override;

  private:
    /// The operations, without a shape.
    struct Body {
        std::vector<FusedLoop::Step> steps;
        std::vector<T> constants;  ///< leaves behind those of the inputs
        std::vector<DType> results;
    };
    void shape(Call& call) override;
    void compute(Call& call) override;
    const Body& body(const std::vector<DType>& types);
    Body translated(const CapturedProgram& program) const;

    std::mutex mutex_;  // of the bodies; one is asked for with every call
    std::map<std::vector<DType>, Body> bodies_;
};

}  // namespace accelera::tensora
