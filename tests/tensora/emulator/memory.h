// Memory of the emulated devices: the CPU can touch it only while a kernel or a copy runs.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <initializer_list>
#include <map>
#include <span>

#include "queues.h"

namespace emulated {

using Address = unsigned long long;
constexpr size_t page = 4096;

struct Pool {
    int device;
    size_t used = 0, reserved = 0;
    uint64_t threshold = 0;
};

struct Block {
    size_t size = 0, mapped = 0;
    char* base = nullptr;
    Pool* pool = nullptr;
    bool freed = false;  ///< its stream has not come that far
};

inline std::map<Address, Block> blocks;
inline std::map<const char*, size_t> pinned;  ///< memory of the host that copies reach later
inline Pool default_pools[n_devices] = {{0}, {1}};
inline std::vector<Pool*> pools = {&default_pools[0], &default_pools[1]};

inline size_t device_bytes() {
    const char* const variable = std::getenv("EMULATED_CUDA_BYTES");
    return variable ? std::strtoull(variable, nullptr, 10) : size_t(1) << 30;
}

inline size_t reserved_bytes(int device) {
    size_t sum = 0;
    for (const Pool* const pool : pools)
        if (pool->device == device) sum += pool->reserved;
    return sum;
}

inline bool fits(const Pool& pool, size_t n) {
    const size_t total = pool.used + n;
    return total <= pool.reserved || reserved_bytes(pool.device) + (total - pool.reserved) <= device_bytes();
}

inline std::map<Address, Block>::iterator block_at(Address at) {
    auto place = blocks.upper_bound(at);
    if (place == blocks.begin()) return blocks.end();
    --place;
    return at < place->first + place->second.size ? place : blocks.end();
}

/// The blocks of a device that the addresses lie in can be touched while this lives, and no others. Words
/// that are no addresses are passed over: a kernel's arguments are variable as they are.
class Opened {
  public:
    Opened(int device, std::span<const Address> words) {
        for (const Address word : words) {
            const auto place = block_at(word);
            if (place == blocks.end() || place->second.pool->device != device) continue;
            const Block& block = place->second;
            if (mprotect(block.base, block.mapped, PROT_READ | PROT_WRITE) == 0) open_.push_back(block);
        }
    }
    Opened(int device, std::initializer_list<Address> words)
        : Opened(device, std::span(words.begin(), words.size())) {}
    ~Opened() {
        for (const Block& block : open_) mprotect(block.base, block.mapped, PROT_NONE);
    }
    Opened(const Opened&) = delete;

  private:
    std::vector<Block> open_;
};

inline bool inside(Address at, size_t n) {
    const auto place = block_at(at);
    return n == 0 || (place != blocks.end() && at + n <= place->first + place->second.size);
}

/// Whether work of a device may touch the memory.
inline bool reachable(int device, Address at, size_t n) {
    const auto place = block_at(at);
    return inside(at, n) && (n == 0 || place->second.pool->device == device);
}

inline void drop_block(Address address) {
    const auto place = blocks.find(address);
    Pool& pool = *place->second.pool;
    pool.used -= place->second.size;
    if (pool.threshold == 0) pool.reserved = pool.used;
    munmap(place->second.base, place->second.mapped + page);
    blocks.erase(place);
}

inline int make_block(Address* address, size_t n, Pool& pool) {
    Block block;
    block.size = n;
    block.mapped = (n + page - 1) / page * page;
    block.pool = &pool;
    // A guard page after the block: an access beyond its end faults.
    char* const all = static_cast<char*>(
        mmap(nullptr, block.mapped + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (all == MAP_FAILED) return out_of_memory;
    block.base = all;
    *address = Address(all + block.mapped - (n + 15) / 16 * 16);
    blocks[*address] = block;
    pool.used += n;
    pool.reserved = std::max(pool.reserved, pool.used);
    // As on a device: the contents are anything.
    mprotect(block.base, block.mapped, PROT_READ | PROT_WRITE);
    if (n < size_t(1) << 22) std::memset(reinterpret_cast<void*>(*address), 0xa5, n);
    mprotect(block.base, block.mapped, PROT_NONE);
    return success;
}

inline thread_local sigjmp_buf escape;
inline thread_local bool can_escape = false;

inline void escape_from_fault(int signal_number) {
    if (!can_escape) {
        signal(signal_number, SIG_DFL);  // it was not a kernel: the fault comes again, and ends the process
        return;
    }
    can_escape = false;
    siglongjmp(escape, signal_number);
}

/// Run a kernel's function; a fault in it is the error that a device reports.
inline int run_guarded(const std::function<int()>& kernel) {
    constexpr int signals[] = {SIGSEGV, SIGBUS, SIGILL};
    struct sigaction before[3], ours = {};
    ours.sa_handler = escape_from_fault;
    ours.sa_flags = SA_NODEFER;
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &ours, &before[i]);
    int result = success;
    if (const int caught = sigsetjmp(escape, 1)) {
        result = caught == SIGILL ? misaligned_address : illegal_address;
    } else {
        can_escape = true;
        result = kernel();
        can_escape = false;
    }
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &before[i], nullptr);
    return result;
}

}  // namespace emulated
