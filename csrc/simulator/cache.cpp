#include "simulator/cache.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "common/error.h"
#include "policy/registry.h"

namespace accelera::simulator {
namespace {

/// One cache with a policy of type P, which is inlined.
template <class P>
class Cache {
  public:
    Cache(P& policy, int64_t capacity_bytes, const Events& events)
        : policy_(policy),
          capacity_bytes_(capacity_bytes),
          events_(events),
          resident_(events.size_bytes.size, 0) {}

    CacheFigures run() {
        if (events_.kinds.empty()) {
            const size_t count = events_.buffer.size;
            for (size_t i = 0; i < count; ++i) {
                if (i + ahead < count) expect(events_.buffer[i + ahead]);
                access(events_.buffer[i], false);
            }
        } else {
            for (size_t i = 0; i < events_.buffer.size; ++i) event(events_.buffer[i], events_.kinds[i]);
        }
        return figures_;
    }

  private:
    static constexpr size_t ahead = 16;

    void expect(Id id) {
        policy_.expect(id, clock_ + static_cast<Time>(ahead));
        __builtin_prefetch(&events_.size_bytes[static_cast<size_t>(id)]);
    }

    void event(Id id, uint8_t kind) {
        switch (static_cast<Kind>(kind)) {
            case Kind::read:
            case Kind::write:
                return access(id, static_cast<Kind>(kind) == Kind::write);
            case Kind::evict:
            case Kind::free:
                if (resident_[static_cast<size_t>(id)]) leave(id, &P::remove);
                return;
            case Kind::release:
            case Kind::save:
                return;
        }
    }

    void access(Id id, bool write) {
        const Time time = clock_++;
        if (resident_[static_cast<size_t>(id)]) {
            ++figures_.hits;
            policy_.touch(id, time, write);
            while (policy_.crowded()) evict_one();
            return;
        }
        const int64_t nbytes = events_.size_bytes[static_cast<size_t>(id)];
        ++figures_.misses;
        figures_.miss_bytes += nbytes;
        if (nbytes > capacity_bytes_) return;
        policy_.miss(id, nbytes, time, write);
        while (occupied_bytes_ + nbytes > capacity_bytes_ || policy_.crowded()) evict_one();
        policy_.insert(id, nbytes, time, write);
        resident_[static_cast<size_t>(id)] = 1;
        occupied_bytes_ += nbytes;
        figures_.peak_bytes = std::max(figures_.peak_bytes, occupied_bytes_);
    }

    void evict_one() {
        const Id victim = policy_.victim([](Id) { return true; });
        if (!is_here(victim)) refuse(victim);
        ++figures_.evictions;
        figures_.evicted_bytes += events_.size_bytes[static_cast<size_t>(victim)];
        leave(victim, &P::evict);
    }

    bool is_here(Id id) const {
        return static_cast<size_t>(id) < resident_.size() && resident_[static_cast<size_t>(id)];
    }

    [[noreturn]] static void refuse(Id victim) {
        throw ArgumentError(victim == policy::none
                                ? "[policy] the policy names nobody to evict although some are here"
                                : "[policy] the policy names buffer " + std::to_string(victim) +
                                      " to evict, which is not here");
    }

    void leave(Id id, void (P::*tell)(Id)) {
        (policy_.*tell)(id);
        resident_[static_cast<size_t>(id)] = 0;
        occupied_bytes_ -= events_.size_bytes[static_cast<size_t>(id)];
    }

    P& policy_;
    const int64_t capacity_bytes_;
    const Events& events_;
    std::vector<uint8_t> resident_;
    CacheFigures figures_;
    int64_t occupied_bytes_ = 0;
    Time clock_ = 0;
};

template <class P>
CacheFigures run_with(const policy::Knowledge& known, const Events& events) {
    P policy(known);
    return Cache<P>(policy, known.capacity_bytes, events).run();
}

}  // namespace

bool run_cache(const std::string& name, const policy::Knowledge& known, const Events& events,
               CacheFigures& figures) {
#define RUN(label, Type)                                 \
    if (name == #label) {                                \
        figures = run_with<policy::Type>(known, events); \
        return true;                                     \
    }
    ACCELERA_POLICIES(RUN)
#undef RUN
    return false;
}

CacheFigures run_cache(policy::AnyPolicy& policy, int64_t capacity_bytes, const Events& events) {
    return Cache<policy::AnyPolicy>(policy, capacity_bytes, events).run();
}

}  // namespace accelera::simulator
