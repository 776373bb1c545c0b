#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tensora/base/arena.h"
#include "tensora/base/backing_store.h"
#include "tensora/device/driver.h"

namespace accelera::tensora::cuda {

/// Memory of a training step on a device: one allocation.
class DeviceMemory final : public ArenaMemory {
  public:
    /// Throws Error(device_memory) when the device has not that much, and some for libraries.
    DeviceMemory(int device, int64_t capacity);
    ~DeviceMemory() override;
    void move(char* to, const char* from, int64_t nbytes) override;
    void give_back(int64_t, int64_t) override {}
    void order(void* stream) override;

  private:
    bool has_room_for_libraries() const;
    void move_by_parts(char* to, const char* from, int64_t nbytes, int64_t gap);

    const int device_;
    Stream stream_;  ///< that used it last
};

/// Backing store in memory of the host. Copies go on in a stream beside the thread's, which waits for them
/// where they have to be done: the thread itself never does.
class HostStore final : public BackingStore {
  public:
    explicit HostStore(int device);
    ~HostStore() override;
    HostStore(const HostStore&) = delete;

    int64_t begin_write(const char* data, int64_t nbytes) override;
    void begin_read(int64_t slot, char* data, int64_t nbytes) override;
    void finish(int64_t slot) override;
    void abandon(int64_t slot) override;
    void forget(int64_t slot) override;
    void release_unused() override;

  private:
    /// Part of the host's memory; slots of chunk i begin at i << chunk_bits. Released ones have no capacity.
    struct Chunk {
        char* memory = nullptr;
        bool pinned = false;
        bool used = true;  ///< since the last `release_unused`
        AddressRanges ranges{0};
    };
    int64_t take(int64_t nbytes);
    size_t add_chunk(int64_t nbytes);
    void release(Chunk& chunk);
    char* at(int64_t slot) const;

    const int device_;
    const Stream stream_;
    std::vector<Chunk> chunks_;
    std::set<int64_t> coming_;  ///< slots that are being read
};

}  // namespace accelera::tensora::cuda
