#pragma once

#include "policy/contract.h"

namespace accelera::policy {

struct Link {
    Id older = none;
    Id younger = none;
};

/// Links for lists over the same ids; an id is in at most one of the lists that share them.
using Links = ById<Link>;

/// A queue of ids: the oldest in front, the youngest at the back. Every step is O(1).
class IdList {
  public:
    explicit IdList(Links& links) : links_(links) {}

    Id oldest() const { return oldest_; }
    Id youngest() const { return youngest_; }
    bool empty() const { return oldest_ == none; }
    Id younger_than(Id id) const { return links_.at(id).younger; }
    Id older_than(Id id) const { return links_.at(id).older; }

    void push_young(Id id) {
        links_[id] = {youngest_, none};
        (youngest_ == none ? oldest_ : links_[youngest_].younger) = id;
        youngest_ = id;
    }

    void push_old(Id id) {
        links_[id] = {none, oldest_};
        (oldest_ == none ? youngest_ : links_[oldest_].older) = id;
        oldest_ = id;
    }

    void erase(Id id) {
        const Link link = links_[id];
        (link.older == none ? oldest_ : links_[link.older].younger) = link.younger;
        (link.younger == none ? youngest_ : links_[link.younger].older) = link.older;
    }

    /// The first from the old end for which `wanted` holds, or none.
    template <class Wanted>
    Id first(Wanted&& wanted) const {
        Id id = oldest_;
        while (id != none && !wanted(id)) id = links_.at(id).younger;
        return id;
    }

  private:
    Links& links_;
    Id oldest_ = none;
    Id youngest_ = none;
};

}  // namespace accelera::policy
