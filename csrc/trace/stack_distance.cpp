#include "trace/stack_distance.h"

#include "trace/recency_peaks.h"
#include "trace/recency_sums.h"

namespace accelera::trace {
namespace {

Kind kind_of(const Events& events, size_t i) {
    return events.kinds.empty() ? Kind::read : static_cast<Kind>(events.kinds[i]);
}

bool is_access(Kind kind) { return kind == Kind::read || kind == Kind::write; }

/// Counts above, bytes below `shift`, in one word.
template <class Word>
void measure_distances(const Events& events, unsigned shift, const StackDistances& found) {
    const Word byte_mask = (Word{1} << shift) - 1;
    RecencySums<Word> recent(events.size_bytes.size);
    std::vector<uint8_t> freed(events.size_bytes.size, 0);
    for (size_t i = 0, access = 0; i < events.buffer.size; ++i) {
        const Id id = events.buffer[i];
        const auto index = static_cast<size_t>(id);
        const Kind kind = kind_of(events, i);
        if (kind == Kind::free) freed[index] = 1;
        if (!is_access(kind)) continue;
        const int64_t nbytes = events.size_bytes[index];
        found.ids[access] = -1;
        found.bytes[access] = -1;
        found.needed_bytes[access] = -1;
        if (recent.contains(id)) {
            const Word after = recent.take(id);
            if (!freed[index]) {
                found.ids[access] = static_cast<int32_t>(after >> shift);
                found.bytes[access] = static_cast<int64_t>(after & byte_mask);
                found.needed_bytes[access] = found.bytes[access] + nbytes;
            }
        }
        freed[index] = 0;
        recent.append(id, (Word{1} << shift) + static_cast<Word>(nbytes));
        ++access;
    }
}

/// What LRU needs when ids leave and make room: less than what lies between and its own bytes together.
void measure_needs(const Events& events, int64_t* needed_bytes) {
    RecencyPeaks recent(events.size_bytes.size);
    for (size_t i = 0, access = 0; i < events.buffer.size; ++i) {
        const Id id = events.buffer[i];
        const int64_t nbytes = events.size_bytes[static_cast<size_t>(id)];
        const Kind kind = kind_of(events, i);
        if (is_access(kind)) {
            needed_bytes[access++] = recent.use(id, nbytes);
        } else if ((kind == Kind::free || kind == Kind::evict) && recent.contains(id)) {
            recent.leave(id, nbytes);
        }
    }
}

bool anything_leaves(const Events& events) {
    for (size_t i = 0; i < events.kinds.size; ++i)
        if (kind_of(events, i) == Kind::free || kind_of(events, i) == Kind::evict) return true;
    return false;
}

unsigned bits(uint64_t value) {
    unsigned count = 0;
    for (; value != 0; value >>= 1) ++count;
    return count;
}

}  // namespace

void measure_stack_distances(const Events& events, const StackDistances& found) {
    uint64_t total = 0;
    for (size_t i = 0; i < events.size_bytes.size; ++i) total += static_cast<uint64_t>(events.size_bytes[i]);
    const unsigned byte_bits = bits(total) + 1;
    if (byte_bits + bits(events.size_bytes.size) <= 64) {
        measure_distances<uint64_t>(events, byte_bits, found);
    } else {
        measure_distances<unsigned __int128>(events, 64, found);
    }
    if (anything_leaves(events)) measure_needs(events, found.needed_bytes);
}

}  // namespace accelera::trace
