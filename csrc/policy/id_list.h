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
    explicit IdList(Links& links) : links_(&links) {}

    Id oldest() const { return oldest_; }
    Id youngest() const { return youngest_; }
    bool empty() const { return oldest_ == none; }
    Id younger_than(Id id) const { return links_->at(id).younger; }
    Id older_than(Id id) const { return links_->at(id).older; }

    void push_young(Id id) {
        (*links_)[id] = {youngest_, none};
        (youngest_ == none ? oldest_ : links_->at(youngest_).younger) = id;
        youngest_ = id;
    }

    void erase(Id id) {
        const Link link = links_->at(id);
        (link.older == none ? oldest_ : links_->at(link.older).younger) = link.younger;
        (link.younger == none ? youngest_ : links_->at(link.younger).older) = link.older;
    }

    void make_youngest(Id id) {
        if (id == youngest_) return;
        erase(id);
        push_young(id);
    }

    /// The first from the old end for which `wanted` holds, or none.
    template <class Wanted>
    Id first(Wanted&& wanted) const {
        Id id = oldest_;
        while (id != none && !wanted(id)) id = younger_than(id);
        return id;
    }

    /// The first from the young end for which `wanted` holds, or none.
    template <class Wanted>
    Id last(Wanted&& wanted) const {
        Id id = youngest_;
        while (id != none && !wanted(id)) id = older_than(id);
        return id;
    }

  private:
    Links* links_;
    Id oldest_ = none;
    Id youngest_ = none;
};

}  // namespace accelera::policy
