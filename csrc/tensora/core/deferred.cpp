#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstring>
#include <mutex>

#include "tensora/core/autograd.h"
#include "tensora/core/op.h"
#include "tensora/core/threads.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"

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

constexpr int64_t block = 512;    // elements
constexpr int64_t most_kept = 4;  // times a result's size: memory that only what it waits for keeps

/// A tensor that a program reads: one number, elements that lie like the result's, or elements that are
/// gathered for each block.
struct Leaf {
    const char* data = nullptr;
    int64_t each = 0;
    bool scalar = false;
    bool dense = false;
    Dims shape, strides;  // of a gathered one, in elements, broadcast to the result's shape

    Leaf(const Tensor& tensor, const Dims& result) : data(tensor.bytes()), each(size_of(tensor.dtype())) {
        scalar = tensor.size() == 1;
        dense = !scalar && tensor.contiguous() && tensor.shape() == result;
        if (!scalar && !dense) join_axes(broadcast_layout(tensor, result, "elementwise"));
    }

    /// Elements `begin` to `begin + n` of the result's order, to `out`.
    void gather(int64_t begin, int64_t n, char* out) const {
        const int last = shape.size() - 1;
        Dims index = Dims::filled(shape.size(), 0);
        int64_t rest = begin;
        for (int i = last; i >= 0; --i) {
            index[i] = rest % shape[i];
            rest /= shape[i];
        }
        while (n > 0) {
            int64_t at = 0;
            for (int i = 0; i <= last; ++i) at += index[i] * strides[i];
            const int64_t run = std::min(n, shape[last] - index[last]);
            copy_run(data + at * each, run, out);
            out += run * each;
            n -= run;
            index[last] = 0;
            for (int i = last - 1; i >= 0 && ++index[i] == shape[i]; --i) index[i] = 0;
        }
    }

  private:
    void join_axes(const Layout& layout) {
        for (int i = 0; i < layout.shape.size(); ++i) {
            if (layout.shape[i] == 1) continue;
            if (!shape.empty() && strides.back() == layout.strides[i] * layout.shape[i]) {
                shape.back() *= layout.shape[i];
                strides.back() = layout.strides[i];
            } else {
                shape.push_back(layout.shape[i]);
                strides.push_back(layout.strides[i]);
            }
        }
    }

    void copy_run(const char* from, int64_t run, char* out) const {
        const int64_t step = strides.back() * each;
        if (step == each) {
            std::memcpy(out, from, size_t(run * each));
            return;
        }
        for (int64_t i = 0; i < run; ++i) std::memcpy(out + i * each, from + i * step, size_t(each));
    }
};

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
        RecordedStep recorded("elementwise");
        const int64_t size = root_.shape().product();
        const DeviceScope scope(root_.device());
        for (Step& step : steps_)
            if (step.stored) {
                const RoleScope role(step.result->role_);
                step.storage = Storage::allocate(size * size_of(step.result->dtype()));
            }
        root_.device().is_cpu() ? run_blocks(size) : run_kernel();
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
    void run_blocks(int64_t size) {
        for (const T& tensor : tensors_) leaves_.emplace_back(*tensor, root_.shape());
        assign_registers();
        const int64_t blocks = (size + block - 1) / block;
        parallel_for(blocks, grain / block, [&](int64_t begin, int64_t end) {
            std::vector<char> registers(size_t(n_registers_) * register_bytes() + 64);
            char* const base = registers.data() + (64 - reinterpret_cast<uintptr_t>(registers.data()) % 64);
            for (int64_t i = begin; i < end; ++i)
                run_block(i * block, std::min(block, size - i * block), base);
        });
    }

    /// All of it as one kernel of a CUDA device.
    void run_kernel() const {
        cuda::FusedProgram program{root_.device(), root_.shape(), tensors_, {}};
        std::vector<T> stored;
        for (const Step& step : steps_) {
            const Deferred& result = *step.result;
            cuda::FusedProgram::Step one{
                result.work_.formula, result.work_.operands, result.dtype(), {}, result.n_};
            for (int k = 0; k < result.n_; ++k)
                one.sources[size_t(k)] =
                    step.sources[k].step >= 0 ? step.sources[k].step : -1 - step.sources[k].leaf;
            if (step.stored) {
                const Dims& shape = result.shape();
                stored.emplace_back(new Tensor(step.storage, {shape, strides_of(shape), 0}, result.dtype()));
                one.stored = stored.back().get();
            }
            program.steps.push_back(one);
        }
        cuda::run_fused(program);
    }

    /// One operand of a step: the result of an earlier one, or a leaf.
    struct Source {
        int step = -1;
        int leaf = -1;
        int buffer = -1;  ///< register into which a leaf is gathered
    };
    struct Step {
        Ref<Deferred> result;  // a signal's handler may run it meanwhile, and drop what it read
        std::array<Source, Deferred::most_operands> sources;
        std::bitset<Deferred::most_operations * Deferred::most_operands>
            leaves;  ///< that it is computed from
        bool stored = false;
        Ref<Storage> storage;
        int buffer = -1;
        int last_use = 0;
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
            for (const Source& source : step.sources) {
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

    void assign_registers() {
        std::vector<int> free_buffers;
        const auto take_buffer = [&] {
            if (free_buffers.empty()) return n_registers_++;
            const int buffer = free_buffers.back();
            free_buffers.pop_back();
            return buffer;
        };
        for (size_t i = 0; i < steps_.size(); ++i)
            for (const Source& source : steps_[i].sources)
                if (source.step >= 0) steps_[source.step].last_use = int(i);
        for (size_t i = 0; i < steps_.size(); ++i) {
            Step& step = steps_[i];
            for (Source& source : step.sources)
                if (source.leaf >= 0 && !leaves_[source.leaf].dense && !leaves_[source.leaf].scalar)
                    source.buffer = take_buffer();
            if (!step.stored) step.buffer = take_buffer();
            for (size_t k = 0; k < step.sources.size(); ++k) {
                const Source& source = step.sources[k];
                if (source.buffer >= 0) free_buffers.push_back(source.buffer);
                const bool counted =
                    std::any_of(step.sources.begin(), step.sources.begin() + k,
                                [&](const Source& other) { return other.step == source.step; });
                if (source.step >= 0 && !counted && steps_[source.step].last_use == int(i) &&
                    steps_[source.step].buffer >= 0)
                    free_buffers.push_back(steps_[source.step].buffer);
            }
        }
    }

    int64_t register_bytes() const {
        int64_t each = 1;
        for (const Step& step : steps_) each = std::max(each, size_of(step.result->dtype()));
        for (const Leaf& leaf : leaves_) each = std::max(each, leaf.each);
        return each * block;
    }

    void run_block(int64_t begin, int64_t n, char* registers) const {
        const int64_t width = register_bytes();
        for (const Step& step : steps_) {
            const char* in[Deferred::most_operands];
            int64_t steps[Deferred::most_operands];
            for (int k = 0; k < step.result->n_; ++k) {
                const Source& source = step.sources[k];
                if (source.step >= 0) {
                    in[k] = place_of(steps_[source.step], begin, registers, width);
                    steps[k] = size_of(steps_[source.step].result->dtype());
                    continue;
                }
                const Leaf& leaf = leaves_[source.leaf];
                in[k] = leaf.data + (leaf.dense ? begin * leaf.each : 0);
                steps[k] = leaf.scalar ? 0 : leaf.each;
                if (source.buffer < 0) continue;
                char* const buffer = registers + source.buffer * width;
                leaf.gather(begin, n, buffer);
                in[k] = buffer;
            }
            step.result->work_.loop(n, place_of(step, begin, registers, width), size_of(step.result->dtype()),
                                    in, steps);
        }
    }

    static char* place_of(const Step& step, int64_t begin, char* registers, int64_t width) {
        if (step.stored) return step.storage->data() + begin * size_of(step.result->dtype());
        return registers + step.buffer * width;
    }

    Deferred& root_;
    uint64_t mark_ = 0;
    std::vector<Step> steps_;
    std::vector<Leaf> leaves_;
    std::vector<T> tensors_;        // of the leaves
    std::vector<int> operands_of_;  // how many operands of these operations each of them is
    int n_registers_ = 0;
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
    if (run_now || call.op.family != Family::elementwise ||
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
