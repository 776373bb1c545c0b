#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace accelera::tensora {

/// Bytes on their way between memory and a file. It stays where it is until it was waited for.
struct FileJob {
    enum class State : uint8_t { queued, running, done };
    int file = -1;
    int64_t offset = 0;
    char* data = nullptr;
    int64_t nbytes = 0;
    bool writes = false;
    int error = 0;  ///< errno; of a file that ends too early EIO
    std::atomic<State> state{State::queued};
    pid_t process = 0;  ///< that has it in its queue
    FileJob* next = nullptr;

    /// In the thread that calls.
    void carry_out();
};

/// A thread that carries out jobs, one after the other. Where the system gives no thread, and in a forked
/// child, which has none of its parent's, jobs are carried out by those who wait for them.
class IoThread {
  public:
    IoThread() = default;
    ~IoThread();
    IoThread(const IoThread&) = delete;

    void begin(FileJob& job);
    /// Return when the job is done; one that was not begun is carried out here.
    void wait(FileJob& job);
    /// Return when nobody works on the job, whether it was begun or not.
    void cancel(FileJob& job);

  private:
    struct Queue {
        std::mutex mutex;
        std::condition_variable filled, done;
        FileJob* first = nullptr;
        FileJob** end = &first;
        bool stops = false;
    };
    static void* work(void* queue);
    /// In a forked child: the parent's queue is left to it.
    void leave_parent();
    void start();
    /// Whether a job was taken out of the queue, and waiting for one that runs.
    bool take_back(FileJob& job);

    Queue* queue_ = nullptr;
    pthread_t thread_{};
    bool started_ = false;
    pid_t process_ = 0;
};

}  // namespace accelera::tensora
