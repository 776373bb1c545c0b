#include <pthread.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>

#include "tensora/base/base.h"
#include "tensora/base/threads.h"
#include "tensora/core/budget.h"
#include "tensora/core/memory.h"

namespace accelera::tensora {

namespace {

enum Event : uint8_t { read_event = 0, write_event = 1, save_event = 3, evict_event = 4, free_event = 5 };

/// Reserve one more entry in each column, so that appending to all of them cannot fail.
template <typename... Columns>
void extend(size_t size, Columns&... columns) {
    const auto one = [size](auto& column) {
        if (column.capacity() == size) column.reserve(2 * size + 16);
    };
    (one(columns), ...);
}

struct Recorder {
    std::mutex mutex;
    Record record;
    uint32_t number = 0;      ///< of the record; a storage's place in an earlier one means nothing
    bool is_complete = true;  ///< no event was lost for lack of memory

    int32_t place_of(Storage& storage) {
        if (storage.recorded.record != number) {
            const size_t place = record.buffer_nbytes.size();
            extend(place, record.buffer_nbytes, record.buffer_role, record.buffer_name);
            record.buffer_nbytes.push_back(storage.block_bytes());
            record.buffer_role.push_back(storage.role());
            record.buffer_name.emplace_back();
            storage.recorded = {number, int32_t(place)};
        }
        return storage.recorded.place;
    }
    void add(Storage& storage, Event event) {
        const int32_t place = place_of(storage);
        extend(record.event_kind.size(), record.event_buffer, record.event_kind, record.event_step);
        record.event_buffer.push_back(place);
        record.event_kind.push_back(event);
        record.event_step.push_back(int32_t(record.step_op.size()));
    }
    void end_step(const char* op, const Cost& cost, double seconds) {
        std::string name = op;
        extend(record.step_op.size(), record.step_op, record.step_flops, record.step_seconds);
        record.step_op.push_back(std::move(name));
        record.step_flops.push_back(cost.flops);
        record.step_seconds.push_back(seconds);
    }
};

std::atomic<bool> recording{false};
thread_local int open_steps = 0;

// Never destroyed: storages may end after static objects do. A fork waits, as the allocator's.
Recorder& recorder() {
    static auto* const one = [] {
        auto* const made = new Recorder;
        pthread_atfork([] { recorder().mutex.lock(); }, [] { recorder().mutex.unlock(); },
                       [] { recorder().mutex.unlock(); });
        return made;
    }();
    return *one;
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

bool is_recording() { return recording.load(std::memory_order_relaxed); }

void begin_record() {
    const std::lock_guard lock(recorder().mutex);
    if (is_recording())
        fail(Kind::runtime, "[record] operations are recorded already; end that record before");
    recorder().record = {};
    recorder().is_complete = true;
    ++recorder().number;
    recording.store(true);
}

Record end_record() {
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) fail(Kind::runtime, "[record] nothing is recorded");
    recording.store(false);
    Recorder& all = recorder();
    if (!all.is_complete)
        fail(Kind::memory, "[record] memory ran out while operations were recorded, and events were lost; ",
             "record a smaller part of the program");
    // Events after the last step belong to it.
    for (auto step = all.record.event_step.rbegin(); step != all.record.event_step.rend(); ++step) {
        if (*step < int32_t(all.record.step_op.size())) break;
        *step = std::max<int32_t>(0, int32_t(all.record.step_op.size()) - 1);
    }
    if (all.record.step_op.empty() && !all.record.event_step.empty()) all.end_step("create", {}, 0);
    return std::move(all.record);
}

void name_in_record(Storage& storage, const std::string& name) {
    if (!is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;  // it has ended meanwhile
    recorder().record.buffer_name[recorder().place_of(storage)] = name;
}

RecordedStep::RecordedStep(const char* op, std::initializer_list<std::span<const T>> operands,
                           const Call* call)
    : active_(is_recording()),
      budget_(thread_state.in_piece ? nullptr : StepBudget::here()),
      exceptions_(std::uncaught_exceptions()),
      op_(op) {
    if (budget_) [[unlikely]]
        budget_->begin_operation(op, operands, call);
    if (!active_) return;
    began_ = now();
    ++open_steps;
}

// A step that cannot end raises, unless another exception ends it.
// NOLINTNEXTLINE(bugprone-unsafe-to-allow-exceptions)
RecordedStep::~RecordedStep() noexcept(false) {
    if (budget_) [[unlikely]]
        budget_->end_operation(std::uncaught_exceptions() > exceptions_);
    if (!active_) return;
    --open_steps;
    if (!is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;  // it has ended meanwhile
    recorder().end_step(op_, cost_, now() - began_);
}

void RecordedStep::compute_in_budget(const std::function<void()>& kernel) const {
    budget_->run_kernel(kernel);
}

void RecordedStep::require_contents() const {
    if (budget_) [[unlikely]]
        budget_->require_contents();
}

void RecordedStep::read(Storage& storage) const {
    if (!active_ || !is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;
    recorder().add(storage, read_event);
}

void RecordedStep::write(Storage& storage) const {
    if (budget_) [[unlikely]]
        budget_->note_write(storage);
    if (!active_ || !is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;
    recorder().add(storage, write_event);
}

void record_birth(Storage& storage) {
    if (!is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;  // it has ended meanwhile
    recorder().add(storage, write_event);
    if (open_steps == 0) recorder().end_step("create", {}, 0);
}

void record_leave(Storage& storage, bool saved) {
    if (!is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;
    if (saved) recorder().add(storage, save_event);
    recorder().add(storage, saved ? evict_event : free_event);
}

void record_return(Storage& storage, bool saved) {
    if (!is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;
    recorder().add(storage, saved ? read_event : write_event);
}

void record_role(Storage& storage) {
    if (!is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;  // it has ended meanwhile
    if (storage.recorded.record == recorder().number)
        recorder().record.buffer_role[storage.recorded.place] = storage.role();
}

void record_end(Storage& storage) {
    if (!is_recording()) return;
    const std::lock_guard lock(recorder().mutex);
    if (!is_recording()) return;  // it has ended meanwhile
    Recorder& all = recorder();
    // What was neither made nor used since the record began is no part of it.
    if (storage.recorded.record != all.number) return;
    try {
        all.add(storage, free_event);
    } catch (const std::bad_alloc&) {
        all.is_complete = false;  // memory ends in destructors, which cannot fail
    }
}

}  // namespace accelera::tensora
