#pragma once

#include "policy/id_list.h"

namespace accelera::policy {

/// What policies share whose residents stand in one queue, where newcomers join at the back.
class PolicyByQueue : public Policy {
  public:
    explicit PolicyByQueue(const Knowledge& known) : links_(known.buffers), queue_(links_) {}
    PolicyByQueue(const PolicyByQueue&) = delete;
    PolicyByQueue& operator=(const PolicyByQueue&) = delete;

    void insert(Id id, int64_t, Time, bool) { queue_.push_young(id); }
    void evict(Id id) { queue_.erase(id); }
    void remove(Id id) { queue_.erase(id); }
    void expect(Id id, Time) const { links_.expect(id); }

  private:
    Links links_;

  protected:
    IdList queue_;
};

}  // namespace accelera::policy
