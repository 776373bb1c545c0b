#pragma once

#include <functional>
#include <vector>

#include "tensora/device/driver.h"

/// Work of a device that is put together once and launched again and again.
namespace accelera::tensora::cuda {

/// Memory that steps allocate and free again before they end: the same steps find the same blocks again.
class StepMemory {
  public:
    explicit StepMemory(int device) : device_(device) {}
    ~StepMemory();
    StepMemory(const StepMemory&) = delete;

    int device() const { return device_; }
    /// A block that is free, or where `grows` a new one; null: there is none.
    char* take(int64_t nbytes, bool grows);
    /// Whether it is one of the blocks, which is free then.
    bool give(const char* memory);
    /// Lets go of the blocks that are not free, whose owners give them back as others. Whether there were
    /// any.
    bool part_with_taken();
    size_t size() const { return blocks_.size(); }
    int64_t nbytes() const;
    /// Gives the blocks behind the first `n` back.
    void shrink(size_t n);

  private:
    struct Block {
        char* memory;
        int64_t nbytes;
        bool free;
    };
    int device_;
    Stream stream_ = nullptr;  ///< of the steps that ran last
    std::vector<Block> blocks_;
};

/// While it lives, it follows what this thread asks of the driver, and serves its allocations.
class Watch {
  public:
    /// `captures`: whatever a graph cannot hold is refused.
    Watch(StepMemory& memory, bool captures);
    ~Watch();
    Watch(const Watch&) = delete;

    /// The one of this thread, or null.
    static Watch* here();
    /// Told by the driver's functions: something other than work in the stream's order.
    static void note(const char* what);
    /// Whether this thread's work goes to a graph now.
    static bool is_capturing() { return here() && here()->captures_; }

    char* take(int64_t nbytes) { return memory_.take(nbytes, !captures_); }
    StepMemory& memory() { return memory_; }
    /// Whether a graph can hold all that was asked for.
    bool only_work() { return !memory_.part_with_taken() && !other_; }

  private:
    StepMemory& memory_;
    bool captures_;
    bool other_ = false;
};

/// A CUDA graph, ready to be launched.
class Graph {
  public:
    /// Of the kernels and copies that `give_work` gives to the device, none of which run now. Raises where
    /// it asks for more than a graph can hold.
    Graph(StepMemory& memory, const std::function<void()>& give_work);
    ~Graph();
    Graph(const Graph&) = delete;
    /// Puts it into the thread's stream.
    void launch();

  private:
    int device_;
    void* handle_;
    Stream stream_ = nullptr;  ///< that it was launched in last
};

}  // namespace accelera::tensora::cuda
