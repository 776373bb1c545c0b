#pragma once

#include <algorithm>

#include "policy/id_list.h"

namespace accelera::policy {

/// LIRS (Jiang and Zhang, SIGMETRICS 2002), in bytes: what counts is how long ago the access *before* the
/// last one was, which a scan cannot fake.
///
/// 1. A buffer is `cool` when its last two accesses were far apart, else `hot`. Hot ones may hold all of the
///    capacity but a hundredth.
/// 2. The `stack` holds, by last access, all hot buffers and whoever was accessed since the coolest of them:
///    cool residents, and those that `left`. Its oldest is always hot: others are pruned away. Of those that
///    left, the earliest are forgotten where the stack is worth more than twice the capacity.
/// 3. The `queue` holds all cool residents; the victim is its oldest.
/// 4. A new buffer is hot while there is room for hot ones, then cool. One that is accessed while it is in
///    the stack becomes hot, and the oldest hot ones cool down into the queue to make room. A touch of a cool
///    one outside the stack puts it into both.
///
/// As in libCacheSim, the last kind of touch makes room for a hot buffer too, and the cool ones never exceed
/// their hundredth (`crowded`), which the paper does not ask for.
class Lirs : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::capacity;

    explicit Lirs(const Knowledge& known)
        : capacity_(known.capacity_bytes),
          cool_share_(std::max<int64_t>(known.capacity_bytes / 100, 1)),
          hot_share_(known.capacity_bytes - cool_share_),
          blocks_(known.buffers),
          stack_links_(known.buffers),
          queue_links_(known.buffers),
          stack_(stack_links_),
          queue_(queue_links_),
          left_(queue_links_) {}

    void miss(Id id, int64_t nbytes, Time, bool) {
        becomes_hot_ = blocks_[id].state == State::left || hot_bytes_ + nbytes <= hot_share_;
        if (blocks_[id].state == State::left) {
            leave_stack(id);
            forget_if_left(id);
            make_hot_room(nbytes);
        }
        incoming_cool_bytes_ = becomes_hot_ ? 0 : nbytes;
    }

    void insert(Id id, int64_t nbytes, Time, bool) {
        blocks_[id].nbytes = nbytes;
        enter_stack(id);
        becomes_hot_ ? heat(id) : cool(id);
        incoming_cool_bytes_ = 0;
        limit_stack();
    }

    void touch(Id id, Time, bool) {
        const int64_t nbytes = blocks_[id].nbytes;
        if (blocks_[id].state == State::hot) {
            stack_.make_youngest(id);
            prune();
        } else if (blocks_[id].stacked) {
            leave_queue(id);
            leave_stack(id);
            make_hot_room(nbytes);
            enter_stack(id);
            heat(id);
        } else {
            queue_.make_youngest(id);
            make_hot_room(nbytes);
            enter_stack(id);
        }
        limit_stack();
    }

    void evict(Id id) {
        Block& block = blocks_[id];
        if (block.state == State::hot || !block.stacked) return remove(id);
        leave_queue(id);
        block.state = State::left;
        left_.push_young(id);
        limit_stack();
    }

    void remove(Id id) {
        if (blocks_[id].state == State::hot) {
            hot_bytes_ -= blocks_[id].nbytes;
        } else {
            leave_queue(id);
        }
        if (blocks_[id].stacked) leave_stack(id);
        blocks_[id].state = State::unknown;
        prune();
    }

    bool crowded() const { return !queue_.empty() && cool_bytes_ + incoming_cool_bytes_ > cool_share_; }

    void expect(Id id, Time) const {
        blocks_.expect(id);
        stack_links_.expect(id);
    }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        const Id found = queue_.first(evictable);
        if (found != none) return found;
        return stack_.first([&](Id id) { return blocks_[id].state == State::hot && evictable(id); });
    }

  private:
    enum class State : uint8_t { unknown, hot, cool, left };

    struct Block {
        int64_t nbytes = 0;
        State state = State::unknown;
        bool stacked = false;
    };

    void heat(Id id) {
        blocks_[id].state = State::hot;
        hot_bytes_ += blocks_[id].nbytes;
    }

    void cool(Id id) {
        blocks_[id].state = State::cool;
        cool_bytes_ += blocks_[id].nbytes;
        queue_.push_young(id);
    }

    /// Let the oldest hot ones cool down until `nbytes` more fit beside the others.
    void make_hot_room(int64_t nbytes) {
        prune();
        while (hot_bytes_ > 0 && hot_bytes_ + nbytes > hot_share_) {
            const Id id = stack_.oldest();
            hot_bytes_ -= blocks_[id].nbytes;
            leave_stack(id);
            cool(id);
            prune();
        }
    }

    /// Drop whoever is older than the oldest hot one.
    void prune() {
        while (!stack_.empty() && blocks_[stack_.oldest()].state != State::hot) {
            const Id id = stack_.oldest();
            leave_stack(id);
            forget_if_left(id);
        }
    }

    void limit_stack() {
        while (stack_bytes_ > 2 * capacity_ && !left_.empty()) {
            const Id id = left_.oldest();
            leave_stack(id);
            forget_if_left(id);
        }
    }

    void forget_if_left(Id id) {
        if (blocks_[id].state != State::left) return;
        left_.erase(id);
        blocks_[id].state = State::unknown;
    }

    void enter_stack(Id id) {
        blocks_[id].stacked = true;
        stack_bytes_ += blocks_[id].nbytes;
        stack_.push_young(id);
    }

    void leave_stack(Id id) {
        blocks_[id].stacked = false;
        stack_bytes_ -= blocks_[id].nbytes;
        stack_.erase(id);
    }

    void leave_queue(Id id) {
        cool_bytes_ -= blocks_[id].nbytes;
        queue_.erase(id);
    }

    const int64_t capacity_;
    const int64_t cool_share_;
    const int64_t hot_share_;
    ById<Block> blocks_;
    Links stack_links_;
    Links queue_links_;
    IdList stack_;
    IdList queue_;
    IdList left_;
    int64_t hot_bytes_ = 0;
    int64_t cool_bytes_ = 0;
    int64_t stack_bytes_ = 0;
    int64_t incoming_cool_bytes_ = 0;
    bool becomes_hot_ = false;
};

}  // namespace accelera::policy
