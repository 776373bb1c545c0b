#include "tensora/base/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tensora/base/base.h"

namespace accelera::tensora {

void AddressRanges::reset(int64_t capacity) {
    capacity_ = capacity;
    used_bytes_ = 0;
    used_.clear();
    gaps_.reset(0, capacity);
}

void AddressRanges::carve(int64_t begin, int64_t place, int64_t nbytes) {
    gaps_.reserve(used_.size() + 1);
    used_.emplace(place, nbytes);
    gaps_.take(begin, place, place + nbytes);
    used_bytes_ += nbytes;
}

int64_t AddressRanges::take(int64_t nbytes, bool at_end) {
    nbytes = block_bytes_of(nbytes);
    const auto gap = gaps_.by_size().lower_bound({nbytes, at_end ? -1 : 0});
    if (gap == gaps_.by_size().end()) return -1;
    int64_t begin = gap->second, size = gap->first;
    if (at_end) {  // the last gap that is large enough keeps the blocks at the end together
        for (auto gap = gaps().rbegin(); gap != gaps().rend(); ++gap)
            if (gap->second - gap->first >= nbytes) {
                begin = gap->first, size = gap->second - gap->first;
                break;
            }
    }
    const int64_t place = at_end ? begin + size - nbytes : begin;
    carve(begin, place, nbytes);
    return place;
}

int64_t AddressRanges::take_first(int64_t nbytes) {
    nbytes = block_bytes_of(nbytes);
    for (const auto& [begin, end] : gaps())
        if (end - begin >= nbytes) {
            const int64_t place = begin;
            carve(place, place, nbytes);
            return place;
        }
    return -1;
}

bool AddressRanges::take_at(int64_t place, int64_t nbytes) {
    nbytes = block_bytes_of(nbytes);
    auto gap = gaps().upper_bound(place);
    if (gap == gaps().begin()) return false;
    --gap;
    if (gap->second < place + nbytes) return false;
    carve(gap->first, place, nbytes);
    return true;
}

void AddressRanges::give(int64_t place) noexcept {
    const auto block = used_.find(place);
    used_bytes_ -= block->second;
    gaps_.give(place, place + block->second);
    used_.erase(block);
}

MappedMemory::MappedMemory(int64_t capacity) : mapped_(capacity) {
    if (capacity == 0) return;
    void* const memory = mmap(nullptr, size_t(capacity), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fail(Kind::memory, "[budget] the system has no ", capacity, " bytes of addresses (",
             describe_errno(errno), ")");
    base_ = static_cast<char*>(memory);
}

MappedMemory::~MappedMemory() {
    if (base_) munmap(base_, size_t(mapped_));
}

void MappedMemory::move(char* to, const char* from, int64_t nbytes) {
    std::memmove(to, from, size_t(nbytes));
}

void MappedMemory::give_back(int64_t place, int64_t nbytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t first = (place + page - 1) / page * page, last = (place + nbytes) / page * page;
    if (first < last) madvise(base_ + first, size_t(last - first), MADV_DONTNEED);
}

}  // namespace accelera::tensora
