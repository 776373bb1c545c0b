#pragma once

#include "policy/by_rank.h"

namespace accelera::policy {

/// GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998): often used and small is kept.
///
/// 1. A clock stands at 0. An access sets its buffer's priority to clock + accesses / bytes.
/// 2. The victim is the evictable buffer of the lowest priority; of equal ones the longest untouched.
/// 3. An eviction sets the clock to the victim's priority, so that whoever stays grows old.
///
/// An eviction forgets the count of accesses.
class Gdsf : public PolicyByRank {
  public:
    explicit Gdsf(const Knowledge& known) : PolicyByRank(known), merits_(known.buffers) {}

    void insert(Id id, int64_t nbytes, Time time, bool) {
        const double worth = 1.0 / static_cast<double>(nbytes > 0 ? nbytes : 1);
        merits_[id] = {worth, worth};
        resident_.push(id, -(clock_ + worth), time);
    }
    void touch(Id id, Time time, bool) {
        Merit& merit = merits_[id];
        merit.sum += merit.worth;
        resident_.update(id, -(clock_ + merit.sum), time);
    }
    void evict(Id id) {
        clock_ = -resident_.key_of(id);
        remove(id);
    }
    void expect(Id id, Time time) const {
        PolicyByRank::expect(id, time);
        merits_.expect(id);
    }

  private:
    struct Merit {
        /// One over the bytes.
        double worth = 0;
        /// Accesses over the bytes.
        double sum = 0;
    };

    ById<Merit> merits_;
    double clock_ = 0;
};

}  // namespace accelera::policy
