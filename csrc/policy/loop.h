#pragma once

#include "policy/id_heap.h"
#include "policy/order.h"

namespace accelera::policy {

/// Belady's rule on what came last time: evict whose next use lies furthest ahead in the order learned so
/// far.
///
/// 1. The order of accesses is learned (order.h), so an access usually has a counterpart one loop ago.
/// 2. A buffer is due where it was used next after that counterpart; without one, at its own place: when the
///    order comes round again.
/// 3. When the order moves past where a buffer was due, the next of its places counts. One that has no place
///    left was not used for a whole loop: it is idle.
/// 4. The victim is the evictable buffer that is idle, else the one due last; of idle ones the longest
///    untouched.
///
/// In the first loop, that is to give up who was used last, which suits a loop; from the second on, the
/// future is known as long as it repeats.
class Loop : public Policy {
  public:
    explicit Loop(const Knowledge& known)
        : order_(known.buffers),
          due_(known.buffers, Order::nowhere),
          far_places_(known.buffers),
          near_places_(known.buffers),
          far_(far_places_),
          near_(near_places_) {}
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    void insert(Id id, int64_t, Time time, bool) {
        const double due = next_place(id);
        far_.push(id, due, time);
        near_.push(id, -due, time);
        pass(time);
    }
    void touch(Id id, Time time, bool) {
        const double due = next_place(id);
        far_.update(id, due, time);
        near_.update(id, -due, time);
        pass(time);
    }
    void evict(Id id) { remove(id); }
    void remove(Id id) {
        far_.erase(id);
        near_.erase(id);
    }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return far_.first(evictable);
    }

  private:
    static constexpr double idle = 1e300;

    /// Note an access, and where the buffer is due.
    double next_place(Id id) {
        order_.note(id);
        const bool known = order_.place() != Order::nowhere;
        due_[id] = known ? order_.next(order_.place()) : order_.latest();
        return static_cast<double>(due_[id]);
    }

    /// Give those another place whose turn it was, without an access.
    void pass(Time time) {
        while (order_.place() != Order::nowhere && !near_.empty() &&
               -near_.top_key() <= static_cast<double>(order_.place())) {
            const Id id = near_.top();
            const Order::Position passed = due_[id];
            due_[id] = order_.next(passed);
            if (due_[id] == Order::nowhere) {
                due_[id] = passed;
                far_.update(id, idle, static_cast<Time>(passed));
                near_.update(id, -idle, time);
            } else {
                far_.update(id, static_cast<double>(due_[id]), time);
                near_.update(id, -static_cast<double>(due_[id]), time);
            }
        }
    }

    Order order_;
    ById<Order::Position> due_;
    Places far_places_;
    Places near_places_;
    IdHeap far_;
    IdHeap near_;
};

}  // namespace accelera::policy
