// Streams and their order, memory that waits for a stream, and graphs.
#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tensora/base/base.h"
#include "tensora/base/threads.h"
#include "tensora/device/device_state.h"
#include "tensora/device/graph.h"

namespace accelera::tensora::cuda {

namespace {

constexpr unsigned other_stream = 1;  // not in order with the default stream
constexpr unsigned event_without_time = 2;

// Made when a stream is chosen: thread-local memory of a library is scarce (see core/memory.cpp).
thread_local std::unique_ptr<std::array<Stream, most_devices>> chosen_streams;
thread_local Stream before_capture = nullptr;

Stream& chosen_stream(int device) {
    if (!chosen_streams) chosen_streams = std::make_unique<std::array<Stream, most_devices>>();
    return (*chosen_streams)[size_t(device)];
}

/// A point of a stream.
class StreamEvent {
  public:
    explicit StreamEvent(int device) : device_(device) {
        const UsedDevice used(device);
        check(driver().cuEventCreate(&event_, event_without_time), "to make an event");
    }
    ~StreamEvent() {
        if (event_ && driver().usable()) driver().cuEventDestroy_v2(event_);
    }
    StreamEvent(StreamEvent&& other) noexcept
        : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
    StreamEvent& operator=(StreamEvent&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(event_, other.event_);
        return *this;
    }

    void record(Stream stream) const {
        const UsedDevice used(device_);
        check(driver().cuEventRecord(event_, stream), "to order two streams");
    }
    void hold_back(Stream later) const {
        const UsedDevice used(device_);
        check(driver().cuStreamWaitEvent(later, event_, 0), "to order two streams");
    }
    bool reached() const {
        constexpr Result not_ready = 600;
        const UsedDevice used(device_);
        return driver().cuEventQuery(event_) != not_ready;
    }

  private:
    int device_;
    Event event_ = nullptr;
};

/// Memory of other libraries that a stream may still use.
struct WaitingRelease {
    StreamEvent event;
    std::function<void()> release;
};
struct WaitingReleases {
    std::mutex mutex;
    std::vector<WaitingRelease> all;
};
WaitingReleases& waiting_releases() {
    static auto* const one = new WaitingReleases;
    return *one;
}

}  // namespace

Stream stream_before_capture() { return before_capture; }

Stream current_stream(int device) {
    DeviceState& state = device_state(device);
    const Stream chosen = chosen_streams ? chosen_stream(device) : nullptr;
    return chosen ? chosen : state.stream;
}

Stream caller_stream(int device) {
    if (!Watch::is_capturing()) return current_stream(device);
    return before_capture ? before_capture : device_state(device).stream;
}

void set_stream(int device, Stream stream) {
    check_device(device);
    chosen_stream(device) = stream;
}

Stream make_stream(int device) {
    static std::array<std::array<Stream, 32>, most_devices> all{};
    static std::array<size_t, most_devices> next{};
    static std::mutex mutex;
    const UsedDevice used(device);
    const std::lock_guard lock(mutex);
    Stream& place = all[size_t(device)][next[size_t(device)]++ % 32];
    if (!place) check(driver().cuStreamCreate(&place, other_stream), "to make a stream");
    return place;
}

void order_streams(int device, Stream earlier, Stream later) {
    // What goes to a graph is launched on a stream that waited already.
    if (earlier == later || Watch::is_capturing()) return;
    const StreamEvent event(device);
    event.record(earlier);
    event.hold_back(later);
}

void wait_for(int device, Stream stream) {
    Watch::note("waiting for a stream");
    {
        const UsedDevice used(device);
        const InterpreterReleased released;
        check(driver().cuStreamSynchronize(stream), "the work of a stream");
    }
    release_finished();
}

void finish(int device, Stream stream) noexcept {
    if (!driver().usable()) return;
    const UsedDevice used(device);
    driver().cuStreamSynchronize(stream);
}

void synchronize(int device) {
    Watch::note("waiting for the device");
    {
        const UsedDevice used(device);
        const InterpreterReleased released;
        check(driver().cuCtxSynchronize(), "the work of the device");
    }
    release_finished();
}

// --- memory of other libraries

void release_after(int device, Stream stream, const std::function<void()>& release) {
    if (!driver().usable()) return release();
    try {
        StreamEvent event(device);
        event.record(Watch::is_capturing() ? caller_stream(device) : stream);
        WaitingReleases& waiting = waiting_releases();
        const std::lock_guard lock(waiting.mutex);
        waiting.all.push_back({std::move(event), release});
    } catch (...) {  // also without memory for the list: wait here, so that the memory is released
        finish(device, stream);
        return release();
    }
    release_finished();
}

void release_finished() {
    if (!driver().usable()) return;
    std::vector<WaitingRelease> finished;
    WaitingReleases& waiting = waiting_releases();
    {
        const std::lock_guard lock(waiting.mutex);
        const auto middle =
            std::stable_partition(waiting.all.begin(), waiting.all.end(),
                                  [](const WaitingRelease& one) { return !one.event.reached(); });
        finished.assign(std::make_move_iterator(middle), std::make_move_iterator(waiting.all.end()));
        waiting.all.erase(middle, waiting.all.end());
    }
    for (const WaitingRelease& one : finished) one.release();
}

void order_after_importer(int device, Stream importer, Stream later) noexcept {
    if (!driver().usable() || importer == later) return;
    try {
        const StreamEvent event(device);
        event.record(importer);
        event.hold_back(later);
    } catch (const Error&) {
        const UsedDevice used(device);
        driver().cuCtxSynchronize();
    }
}

// --- graphs

bool has_graphs() { return driver().graphs; }

void begin_graph(int device) {
    const UsedDevice used(device);
    if (!used->capture_stream)
        check(driver().cuStreamCreate(&used->capture_stream, other_stream), "to make a stream");
    constexpr int this_thread = 1;  // calls of other threads do not invalidate the capture
    check(driver().cuStreamBeginCapture_v2(used->capture_stream, this_thread), "to begin a graph");
    before_capture = std::exchange(chosen_stream(device), used->capture_stream);
}

void* end_graph(int device, bool used_later) {
    const UsedDevice used(device);
    chosen_stream(device) = std::exchange(before_capture, nullptr);
    void *graph = nullptr, *ready = nullptr;
    Result result = driver().cuStreamEndCapture(used->capture_stream, &graph);
    if (used_later && result == 0) result = driver().cuGraphInstantiateWithFlags(&ready, graph, 0);
    if (graph) driver().cuGraphDestroy(graph);
    if (used_later) check(result, "to make a graph");
    return ready;
}

void launch_graph(int device, void* graph) {
    const UsedDevice used(device);
    check(driver().cuGraphLaunch(graph, current_stream(device)), "to launch a graph");
}

void drop_graph(int device, void* graph) noexcept {
    if (!graph || !driver().usable()) return;
    const UsedDevice used(device);
    driver().cuGraphExecDestroy(graph);
}

}  // namespace accelera::tensora::cuda
