#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "common/free_ranges.h"

namespace accelera::tensora {

constexpr int64_t cpu_granule = 64;
/// Vector loads of cuBLAS and bulk copies of the device need this alignment for their fast paths.
constexpr int64_t device_granule = 256;

/// Bytes of a block in an arena: the next multiple of a power of two.
constexpr int64_t block_bytes_of(int64_t nbytes, int64_t granule = cpu_granule) {
    return (nbytes < 1 ? granule : nbytes + granule - 1) / granule * granule;
}

/// Free and used parts of a range of bytes. Sizes and places are multiples of 64, and of a larger granule if
/// the capacity and all blocks are.
class AddressRanges {
  public:
    explicit AddressRanges(int64_t capacity) : capacity_(capacity), gaps_(0, capacity) {}
    void reset(int64_t capacity);

    /// Place of a block in the smallest gap that has room for it, at the gap's beginning or at its end; -1 if
    /// there is none.
    int64_t take(int64_t nbytes, bool at_end = false);
    /// The same, in the first gap that has room: where it is does not depend on the capacity.
    int64_t take_first(int64_t nbytes);
    /// Whether these bytes were free; they are used now.
    bool take_at(int64_t place, int64_t nbytes);
    void give(int64_t place) noexcept;

    int64_t capacity() const { return capacity_; }
    int64_t used_bytes() const { return used_bytes_; }
    int64_t largest_gap() const { return gaps_.by_size().empty() ? 0 : gaps_.by_size().rbegin()->first; }
    /// Gaps, by their beginnings.
    const FreeRanges::ByPlace& gaps() const { return gaps_.by_place(); }

  private:
    void carve(int64_t begin, int64_t place, int64_t nbytes);

    int64_t capacity_ = 0;
    int64_t used_bytes_ = 0;
    FreeRanges gaps_;
    std::map<int64_t, int64_t> used_;  // begin -> bytes
};

/// Memory that an arena's blocks lie in.
class ArenaMemory {
  public:
    virtual ~ArenaMemory() = default;
    char* at(int64_t place) const { return base_ + place; }
    /// The bytes are at `to` from now on; both ranges may share some.
    virtual void move(char* to, const char* from, int64_t nbytes) = 0;
    /// Nothing is in these bytes: the system may have them until they are written.
    virtual void give_back(int64_t place, int64_t nbytes) = 0;
    /// What this thread does next comes after all that was done with the memory, on `stream` too.
    virtual void order(void* stream) = 0;

  protected:
    char* base_ = nullptr;
};

/// Memory of a training step on the CPU: one mapping.
class MappedMemory final : public ArenaMemory {
  public:
    /// Throws Error(memory) when the system does not give the addresses.
    explicit MappedMemory(int64_t capacity);
    ~MappedMemory() override;
    void move(char* to, const char* from, int64_t nbytes) override;
    void give_back(int64_t place, int64_t nbytes) override;
    void order(void*) override {}

  private:
    int64_t mapped_;
};

/// Blocks of a training step, whose size is never exceeded.
struct Arena {
    Arena(int64_t capacity, std::unique_ptr<ArenaMemory> its_memory)
        : ranges(capacity), memory(std::move(its_memory)) {}
    char* at(int64_t place) const { return memory->at(place); }
    /// Give the memory of free ranges back to the system.
    void give_back_pages() {
        for (const auto& [begin, end] : ranges.gaps()) memory->give_back(begin, end - begin);
    }
    AddressRanges ranges;
    std::unique_ptr<ArenaMemory> memory;
};

}  // namespace accelera::tensora
