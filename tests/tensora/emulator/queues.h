// Contexts, streams and events of the emulated driver. Work is not done when it is enqueued but when the
// program waits for it, as late as the order of the streams allows: work that no event orders is done in
// another order than it was enqueued in, and wrong results show. With EMULATED_CUDA_ORDER=early, the streams
// that are not in order with the default one do their work immediately instead, ahead of all others; with
// eager all do.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace emulated {

constexpr int success = 0, invalid_value = 1, out_of_memory = 2, not_initialized = 3, invalid_image = 200,
              invalid_context = 201, invalid_handle = 400, not_found = 500, not_ready = 600,
              illegal_address = 700, too_many_resources = 701, misaligned_address = 716, launch_failed = 719,
              capture_unsupported = 900, capture_invalidated = 901;
constexpr int n_devices = 2;

inline std::recursive_mutex mutex;
inline pid_t owner = 0;               ///< process that initialized the driver: a forked child cannot use it
inline thread_local int current = 0;  ///< context: device + 1
inline int lost[n_devices] = {0, 0};  ///< error after which a context does nothing more

/// Reason why nothing can be done in the current context; 0: none.
inline int unusable() {
    if (owner != getpid()) return not_initialized;
    return current ? lost[current - 1] : invalid_context;
}

using Work = std::function<int()>;

struct Stream {
    int device;
    bool blocking;  ///< ordered with the default stream
    bool capturing = false, valid = true;
    std::vector<Work> captured;
    std::deque<Work> items;
    uint64_t started = 0;  ///< items that are done, or in progress
    uint64_t end() const { return started + items.size(); }
};

/// All work of a stream before a position.
struct Mark {
    Stream* stream = nullptr;
    uint64_t end = 0;
    bool done() const { return !stream || stream->started >= end; }
};

struct Event {
    int device;
    Mark mark;
};

inline std::set<Stream*> streams;
inline std::set<Event*> events;
// The default streams of the devices: the one of all threads, and the one that represents each thread's.
inline Stream usual[n_devices] = {{0, true}, {1, true}}, threads_own[n_devices] = {{0, true}, {1, true}};

/// The stream of a handle; null if it is unknown. 1 and 2 are the default streams.
inline Stream* stream_of(void* handle) {
    const auto number = reinterpret_cast<intptr_t>(handle);
    if (number <= 1) return &usual[current - 1];
    if (number == 2) return &threads_own[current - 1];
    auto* const stream = static_cast<Stream*>(handle);
    return streams.count(stream) ? stream : nullptr;
}

inline void run_until(Mark mark) {
    while (!mark.done()) {
        const Work work = std::move(mark.stream->items.front());
        mark.stream->items.pop_front();
        ++mark.stream->started;
        int& failure = lost[mark.stream->device];
        const int result = failure ? failure : work();  // which may fail in other work that it waits for
        if (result) failure = result;
    }
}

inline void push_wait(Stream& later, Stream& earlier) {
    const Mark mark{&earlier, earlier.end()};
    if (mark.done() || &later == &earlier) return;
    later.items.push_back([mark] { return run_until(mark), success; });
}

/// The default stream follows all blocking ones, which follow it.
inline void order_with_default(Stream& stream) {
    Stream& common = usual[stream.device];
    if (&stream != &common) {
        if (stream.blocking) push_wait(stream, common);
        return;
    }
    push_wait(common, threads_own[stream.device]);
    for (Stream* const other : streams)
        if (other->blocking && other->device == stream.device) push_wait(common, *other);
}

inline bool runs_now(const Stream& stream) {
    const char* const order = std::getenv("EMULATED_CUDA_ORDER");
    if (!order || std::strcmp(order, "late") == 0) return false;
    return std::strcmp(order, "eager") == 0 || !stream.blocking;
}

inline int enqueue(Stream& stream, Work work) {
    if (stream.capturing) return stream.captured.push_back(std::move(work)), success;
    order_with_default(stream);
    stream.items.push_back(std::move(work));
    constexpr size_t most_pending = 2000;  // a device does not wait for ever
    if (runs_now(stream) || stream.items.size() > most_pending) run_until({&stream, stream.end()});
    return lost[stream.device];
}

inline int finish(Stream& stream) {
    run_until({&stream, stream.end()});
    return lost[stream.device];
}

inline int finish_all(int device) {
    for (Stream* const stream : {&usual[device], &threads_own[device]}) finish(*stream);
    for (Stream* const stream : streams)
        if (stream->device == device) finish(*stream);
    return lost[device];
}

/// What a stream that is captured does not allow, after which nothing comes of its graph. Stricter than a
/// driver: copies from and to the CPU, and allocations, would be nodes there.
inline int refuse(Stream& stream) {
    stream.valid = false;
    return capture_unsupported;
}

/// Whether work of the current context may go to the stream; 0: it may.
inline int problem_of(Stream* stream, bool may_capture = true) {
    if (const int problem = unusable()) return problem;
    if (!stream || stream->device != current - 1) return invalid_handle;
    if (stream->capturing && !may_capture) return refuse(*stream);
    return success;
}

}  // namespace emulated
