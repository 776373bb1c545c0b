#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstring>
#include <mutex>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/core/basic_functions.h"
#include "tensora/core/capture_events.h"
#include "tensora/core/fused_loop.h"
#include "tensora/core/op.h"

namespace accelera::tensora {

namespace {

std::atomic<int64_t> least{grain};
thread_local constinit bool run_now = false;
uint64_t last_walk = 0;

// Leaked, and new in a forked process: its owner there may be a thread that the fork left behind.
std::atomic<std::recursive_mutex*> the_mutex{nullptr};

std::recursive_mutex& program_mutex() {
    static const bool registered = [] {
        the_mutex.store(new std::recursive_mutex);
        pthread_atfork(nullptr, nullptr, [] { the_mutex.store(new std::recursive_mutex); });
        return true;
    }();
    (void)registered;
    return *the_mutex.load();
}

/// The right to run programs; others wait without the interpreter's lock, which whoever runs may need.
std::unique_lock<std::recursive_mutex> program_turn() {
    std::unique_lock turn(program_mutex(), std::try_to_lock);
    if (!turn.owns_lock()) {
        const InterpreterReleased released;
        turn.lock();
    }
    return turn;
}

constexpr int64_t most_kept = 4;  // times a result's size: memory that only what it waits for keeps

}  // namespace

/// Operations that run together: one after the other on a block of elements, then on the next block.
class Program {
  public:
    explicit Program(Deferred& root) : root_(root) {
        mark_ = ++last_walk;
        visit(root);
        choose_stored();
    }

    /// Operations that have not run, of which tensors are the results, and the memory that they alone keep.
    struct Waiting {
        int64_t operations = 0;
        int64_t nbytes = 0;
    };
    static Waiting waiting(std::span<const T> inputs) {
        const uint64_t mark = ++last_walk;
        Waiting sum;
        for (const T& input : inputs)
            if (input->deferred()) add_waiting(*input->deferred(), mark, sum);
        return sum;
    }

    void run() {
        RecordedStep recorded("elementwise", {tensors_});
        const int64_t size = root_.shape().product();
        const DeviceScope scope(root_.device());
        for (Step& step : steps_)
            if (step.stored) {
                const RoleScope role(step.result->role_);
                step.storage = Storage::allocate(size * size_of(step.result->dtype()));
            }
        recorded.require_contents();
        run_loop();
        for (const T& leaf : tensors_) recorded.read(*leaf->storage());
        recorded.cost({double(size) * double(steps_.size()), 0});
        for (Step& step : steps_) {
            if (step.result->has_run()) continue;
            if (step.stored)
                step.result->take(step.storage);
            else
                ++step.result->uses_;
        }
    }

  private:
    void run_loop() const {
        std::vector<FusedLoop::Step> steps;
        std::vector<T> stored;
        for (const Step& step : steps_) {
            const Deferred& result = *step.result;
            const int place = step.stored ? int(stored.size()) : -1;
            if (step.stored)
                stored.push_back(T(new Tensor(step.storage, {result.shape(), strides_of(result.shape()), 0},
                                              result.dtype())));
            steps.push_back({result.work_.formula, result.work_.operands, result.work_.loop, result.dtype(),
                             result.n_, step.sources, place});
        }
        FusedLoop(root_.shape(), std::move(steps)).run(tensors_, stored);
    }

    struct Step {
        Ref<Deferred> result;  // a signal's handler may run it meanwhile, and drop what it read
        std::array<FusedLoop::Source, Deferred::most_operands> sources;
        std::bitset<size_t(Deferred::most_operations) * Deferred::most_operands>
            leaves;  ///< that it is computed from
        bool stored = false;
        Ref<Storage> storage;
    };

    static void add_waiting(Deferred& deferred, uint64_t mark, Waiting& sum) {
        if (deferred.mark_ == mark) return;
        deferred.mark_ = mark;
        ++sum.operations;
        for (int i = 0; i < deferred.n_; ++i) {
            const Deferred::Operand& operand = deferred.operands_[i];
            if (operand.deferred) {
                add_waiting(*operand.deferred, mark, sum);
                continue;
            }
            Storage& storage = *operand.tensor->storage();
            if (storage.ref_count() == storage.readers().size())
                sum.nbytes += storage.nbytes() / int64_t(storage.readers().size());
        }
    }

    /// Puts a result behind those that it is computed from.
    int visit(Deferred& deferred) {
        if (deferred.mark_ == mark_) return deferred.place_;
        deferred.mark_ = mark_;
        Step step;
        step.result = Ref<Deferred>(&deferred);
        for (int i = 0; i < deferred.n_; ++i) {
            const Deferred::Operand& operand = deferred.operands_[i];
            if (operand.deferred)
                step.sources[i].step = visit(*operand.deferred);
            else
                step.sources[i].leaf = leaf_of(operand.tensor);
        }
        steps_.push_back(std::move(step));
        deferred.place_ = int(steps_.size()) - 1;
        return deferred.place_;
    }

    int leaf_of(const T& tensor) {
        for (size_t i = 0; i < tensors_.size(); ++i) {
            const Tensor& known = *tensors_[i];
            if (known.storage() == tensor->storage() && known.layout().offset == tensor->layout().offset &&
                known.dtype() == tensor->dtype() && known.shape() == tensor->shape() &&
                known.strides() == tensor->strides()) {
                ++operands_of_[i];
                return int(i);
            }
        }
        tensors_.push_back(tensor);
        operands_of_.push_back(1);
        return int(tensors_.size()) - 1;
    }

    /// The root's elements are stored. So are those of results that tensors refer to, when they were computed
    /// before, or when to compute them again would keep more memory than they take.
    void choose_stored() {
        for (Step& step : steps_)
            for (const FusedLoop::Source& source : step.sources) {
                if (source.step >= 0) step.leaves |= steps_[source.step].leaves;
                if (source.leaf >= 0) step.leaves.set(size_t(source.leaf));
            }
        for (Step& step : steps_)
            step.stored = step.result->has_tensors() && (step.result->uses_ > 0 || !cheap_to_keep(step));
        steps_.back().stored = true;
    }

    /// Whether the leaves that nobody else holds are no larger than the result.
    bool cheap_to_keep(const Step& step) const {
        int64_t nbytes = 0;
        for (size_t i = 0; i < tensors_.size(); ++i) {
            const Ref<Storage>& storage = tensors_[i]->storage();
            if (step.leaves[i] && storage->ref_count() == uint32_t(operands_of_[i]))
                nbytes += storage->nbytes();
        }
        return nbytes <= step.result->shape().product() * size_of(step.result->dtype());
    }

    Deferred& root_;
    uint64_t mark_ = 0;
    std::vector<Step> steps_;
    std::vector<T> tensors_;        // that the operations read
    std::vector<int> operands_of_;  // how many operands of these operations each of them is
};

Deferred::Deferred(const Work& work, std::span<const T> inputs, const Call::Output& out, Device device)
    : work_(work), n_(int(inputs.size())), shape_(out.shape), dtype_(out.dtype), device_(device) {
    for (int i = 0; i < n_; ++i) {
        const Ref<Deferred>& deferred = inputs[i]->deferred();
        if (deferred && !deferred->has_run()) {  // another thread may have run it just now
            operands_[i].deferred = deferred;
            deferred->readers_.push_back(this);
        } else {
            read(i, inputs[i]->detach());
        }
    }
}

Deferred::~Deferred() { drop_operands(); }

void Deferred::read(int i, const T& tensor) {
    operands_[i] = {{}, tensor};
    tensor->storage()->readers().push_back(this);
}

void Deferred::drop_operands() {
    for (Operand& operand : operands_) {
        if (!operand.tensor && !operand.deferred) continue;
        auto& readers = operand.tensor ? operand.tensor->storage()->readers() : operand.deferred->readers_;
        readers.erase(std::find(readers.begin(), readers.end(), this));
        operand = {};
    }
}

const Ref<Storage>& Deferred::storage() {
    if (!storage_) {
        const auto turn = program_turn();
        if (!storage_) Program(*this).run();
    }
    return storage_;
}

/// The elements are there: whoever waited for them reads the memory from now on.
void Deferred::take(const Ref<Storage>& storage) {
    storage_ = storage;
    drop_operands();
    const Ref<Deferred> self(this);  // the last reference may be a reader's
    for (Deferred* const reader : std::exchange(readers_, {}))
        for (int i = 0; i < reader->n_; ++i)
            if (reader->operands_[i].deferred == self)
                reader->read(i, T(new Tensor(storage, {shape_, strides_of(shape_), 0}, dtype_)));
}

int64_t fusion_least() { return least.load(std::memory_order_relaxed); }
void set_fusion_least(int64_t n) { least.store(n); }

void settle_readers(Storage& storage) {
    while (!storage.readers().empty()) Ref<Deferred>(storage.readers().back())->storage();
}

namespace {

bool may_read(const Tensor& tensor) {
    if (tensor.deferred() && tensor.deferred()->has_run()) tensor.storage();  // for another tensor's sake
    return tensor.deferred() || !(tensor.storage()->borrowed() || tensor.storage()->lent());
}

/// What a call computes; without a loop where it cannot wait.
Deferred::Work work_of(const Call& call) {
    if (call.op.loops) {
        const DType operands = loop_type(call);
        return {call.op.name, operands, call.op.loops->of[int(operands)].loop};
    }
    const DType result = call.made[0].dtype;
    if (std::strcmp(call.op.name, "where") == 0) return {"where", result, where_loop(result)};
    const DType operands = call.input().dtype();
    const bool converts = std::strcmp(call.op.name, "cast") == 0 && operands != result;
    return {"cast", operands, converts ? cast_loop(operands, result) : nullptr};
}

}  // namespace

RunNow::RunNow() : before_(std::exchange(run_now, true)) {}
RunNow::~RunNow() { run_now = before_; }

T defer(Call& call, Device device) {
    const Dims& shape = call.made[0].shape;
    if (run_now || thread_state.capture || call.op.family != Family::elementwise ||
        shape.product() < std::max<int64_t>(fusion_least(), 1))
        return T();
    for (const T& input : call.in)
        if (!may_read(*input)) return T();
    const Deferred::Work work = work_of(call);
    if (!work.loop) return T();
    const Program::Waiting waiting = Program::waiting(call.in);
    const bool too_many = waiting.operations >= Deferred::most_operations ||
                          waiting.nbytes > most_kept * shape.product() * size_of(work.operands);
    for (const T& input : call.in)
        if (too_many || !(input->shape() == shape)) input->storage();  // what is broadcast is computed before
    std::array<T, Deferred::most_operands> converted;
    const GradMode off(false);
    for (size_t i = 0; i < call.in.size(); ++i) {
        const bool condition = !call.op.loops && call.in.size() == 3 && i == 0;
        converted[i] = condition ? call.in[i] : cast(call.in[i], work.operands);
    }
    const Ref<Deferred> result(new Deferred(work, {converted.data(), call.in.size()}, call.made[0], device));
    return T(new Tensor(result));
}

}  // namespace accelera::tensora
