#pragma once

#include <array>
#include <vector>

#include "tensora/core/op.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

/// Result of an elementwise operation that has not run yet. When somebody needs its elements, it and the
/// operations before it that have not run either run together, block by block, so that what lies between them
/// stays in the cache. Tensors share it with the operations that read it.
class Deferred final : public Counted {
  public:
    /// Another result that has not run, or a tensor, outside of any graph.
    struct Operand {
        Ref<Deferred> deferred;
        T tensor;
    };
    static constexpr int most_operands = 3;
    static constexpr int most_operations = 40;  ///< that run together

    /// What is computed: "where", "cast" or a formula, of elements of the type `operands`.
    struct Work {
        const char* formula;
        DType operands;
        Loop loop;
    };
    Deferred(const Work& work, std::span<const T> inputs, const Call::Output& out, Device device);
    ~Deferred() override;

    const Dims& shape() const { return shape_; }
    DType dtype() const { return dtype_; }
    Device device() const { return device_; }
    bool has_run() const { return bool(storage_); }
    /// Memory with the elements; runs the operation the first time.
    const Ref<Storage>& storage();

    /// Tensors that refer to it: only for their sake its elements are ever stored.
    void add_tensor() { ++tensors_; }
    void drop_tensor() { --tensors_; }
    bool has_tensors() const { return tensors_ > 0; }
    /// A graph has saved it.
    void keep_as_activation() {
        if (role_ == Role::other) role_ = Role::activation;
    }

  private:
    friend class Program;
    void read(int i, const T& tensor);
    void take(const Ref<Storage>& storage);
    void drop_operands();

    Work work_;
    int n_ = 0;
    std::array<Operand, most_operands> operands_;
    Dims shape_;
    DType dtype_;
    Device device_;
    Role role_ = RoleScope::current();  ///< of the memory, when there is some
    Ref<Storage> storage_;
    std::vector<Deferred*> readers_;  ///< results that wait for this one; an entry for each operand
    int tensors_ = 0;
    int uses_ = 0;       ///< programs that computed it without storing it
    uint64_t mark_ = 0;  ///< of the walk that came here last
    int place_ = 0;      ///< in that walk's list
};

/// The call as a deferred result, or null when it has to run now. The rule has run.
T defer(Call& call, Device device);
/// While it lives, nothing that this thread computes is deferred: kernels read it from several threads.
class RunNow {
  public:
    RunNow();
    ~RunNow();
    RunNow(const RunNow&) = delete;

  private:
    bool before_;
};
/// Results of fewer elements are computed at once; fusion is off where it is INT64_MAX.
int64_t fusion_least();
void set_fusion_least(int64_t n);
/// Runs what has not run yet and reads this memory, which is about to be written or lent.
void settle_readers(Storage& storage);

}  // namespace accelera::tensora
