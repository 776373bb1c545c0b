#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

/// Eviction policies over dense buffer ids, header-only, one per file.
///
/// A policy keeps an order over resident buffers and names a victim; it counts no bytes and never decides
/// whether to evict. The calls of one access that misses:
///
///     miss(new) -- while there is no room: victim() -> old, evict(old) -- insert(new)
///
/// The buffer pool reaches them through AnyPolicy (any.h), the simulator's loops directly.
namespace accelera::policy {

using Id = int32_t;
/// Index of an access, from 0.
using Time = int32_t;

constexpr Id none = -1;
/// No such access will come: the buffer is freed or set anew before it is read, or never accessed again.
constexpr Time never = std::numeric_limits<Time>::max();
/// Not read again, but alive at the end: what it holds is a result.
constexpr Time kept = never - 1;

/// A read-only array that somebody else owns.
template <class T>
struct Span {
    const T* data = nullptr;
    size_t size = 0;

    const T& operator[](size_t i) const { return data[i]; }
    /// The entry at `i`, or `otherwise` past the end: a run may go on longer than was foreseen.
    T get(Time i, T otherwise) const {
        return static_cast<size_t>(i) < size ? data[static_cast<size_t>(i)] : otherwise;
    }
    bool empty() const { return size == 0; }
};

/// What a policy may know beforehand; what is not known is empty or zero.
struct Knowledge {
    /// What a policy cannot do without.
    enum Need : unsigned { nothing = 0, capacity = 1, uses = 2, reads = 4, scores = 8 };

    int64_t capacity_bytes = 0;
    /// How many ids there will be; more may come.
    Id buffers = 0;
    /// Per access, the time of the same buffer's next access, or never.
    Span<Time> next_use;
    /// Per access, the time of the same buffer's next read of the same contents, or never, or kept.
    Span<Time> next_read;
    /// Per access, how willingly its buffer is given up from then on: the highest goes first.
    Span<double> score;
    uint64_t seed = 0;
};

/// What most policies do about what they are told; they redefine what concerns them.
struct Policy {
    static constexpr unsigned needs = Knowledge::nothing;

    void miss(Id, int64_t, Time, bool) {}
    bool dead(Id) const { return false; }
    /// `id` is accessed at `time`, which is soon: what that looks at may be brought near.
    void expect(Id, Time) const {}
    /// Whether one more should leave although there is room: for policies that keep a part of the capacity
    /// apart. The plain cache heeds it; pools and hierarchies evict only when they must.
    bool crowded() const { return false; }
};

/// An array by id that grows when a new id comes.
template <class T>
class ById {
  public:
    explicit ById(Id expected, T fresh = T{})
        : values_(static_cast<size_t>(expected > 0 ? expected : 0), fresh), fresh_(fresh) {}

    T& operator[](Id id) {
        const auto index = static_cast<size_t>(id);
        if (index >= values_.size()) values_.resize(index + 1 + index / 2, fresh_);
        return values_[index];
    }
    /// For an id that is known to be here.
    T& at(Id id) { return values_[static_cast<size_t>(id)]; }
    const T& at(Id id) const { return values_[static_cast<size_t>(id)]; }

    void expect(Id id) const {
        if (static_cast<size_t>(id) < values_.size()) __builtin_prefetch(&at(id), 1);
    }

  private:
    std::vector<T> values_;
    T fresh_;
};

}  // namespace accelera::policy
