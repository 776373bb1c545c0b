#pragma once

#include <map>
#include <mutex>

#include "tensora/jit/tile_body.h"
#include "tensora/jit/user_kernel.h"

namespace accelera::tensora {

/// Function of rows as an operation: it runs on one row after the other, of which all that lies between its
/// operations fits into the cache; on a CUDA device a block of threads runs on each row.
class TileKernel final : public UserKernel {
  public:
    TileKernel(const std::string& name, int inputs, int outputs, Source source);
    std::string words(const KernelSignature& signature) override;
    std::string cuda_source(const KernelSignature& signature) override;
    std::vector<DType> results(const KernelSignature& signature) override;

  private:
    /// A body, and its constants on the devices that it ran on.
    struct Known {
        std::shared_ptr<const TileBody> body;
        std::map<int, T> constants;
    };
    void shape(Call& call) override;
    void compute(Call& call) override;
    T slope(const T& grad, int dims) const override;
    const TileBody& body(const KernelSignature& signature);
    T constants(const KernelSignature& signature, Device device);
    void compute_on_device(Call& call, const Dims& shape);

    std::mutex mutex_;
    std::map<KernelSignature, Known> known_;
};

}  // namespace accelera::tensora
