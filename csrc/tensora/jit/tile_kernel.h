#pragma once

#include <map>
#include <mutex>

#include "tensora/jit/user_kernel.h"

namespace accelera::tensora {

/// Function of rows as an operation: it runs on one row after the other, of which all that lies between its
/// operations fits into the cache.
class TileKernel final : public UserKernel {
  public:
    TileKernel(const std::string& name, int inputs, int outputs, Source source);
    std::string words(const KernelSignature& signature) override;
    std::string cuda_source(const KernelSignature& signature) override;

  private:
    struct Body;
    class Translation;
    void shape(Call& call) override;
    void compute(Call& call) override;
    T slope(const T& grad, int dims) const override;
    const Body& body(const KernelSignature& signature);

    std::mutex mutex_;
    std::map<KernelSignature, std::shared_ptr<const Body>> bodies_;
};

}  // namespace accelera::tensora
