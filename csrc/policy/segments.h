#pragma once

#include <vector>

#include "policy/id_list.h"

namespace accelera::policy {

/// Several queues that know their bytes; an id is in one of them or nowhere. For policies that divide the
/// capacity, or remember who left: a queue of the departed ("ghosts") is one like the others.
class Segments {
  public:
    static constexpr int nowhere = -1;

    Segments(Id expected, int count)
        : links_(expected), homes_(expected), queues_(static_cast<size_t>(count), Queue{IdList(links_), 0}) {}
    Segments(const Segments&) = delete;

    const IdList& operator[](int queue) const { return queues_[static_cast<size_t>(queue)].ids; }
    int64_t bytes(int queue) const { return queues_[static_cast<size_t>(queue)].bytes; }
    int where(Id id) { return homes_[id].queue; }
    int64_t size(Id id) const { return homes_.at(id).nbytes; }

    /// Put an id that is nowhere at the young end of `queue`.
    void push(int queue, Id id, int64_t nbytes) {
        homes_[id] = {nbytes, queue};
        at(queue).ids.push_young(id);
        at(queue).bytes += nbytes;
    }

    /// Make `id` the youngest of `queue`, wherever it is now.
    void move(int queue, Id id) {
        const int64_t nbytes = size(id);
        erase(id);
        push(queue, id, nbytes);
    }

    void erase(Id id) {
        Home& home = homes_[id];
        if (home.queue == nowhere) return;
        at(home.queue).ids.erase(id);
        at(home.queue).bytes -= home.nbytes;
        home.queue = nowhere;
    }

    void expect(Id id) const {
        homes_.expect(id);
        links_.expect(id);
    }

    void erase_oldest(int queue) { erase((*this)[queue].oldest()); }

    /// Forget the oldest of `queue` until it holds no more than `bytes`.
    void trim(int queue, int64_t bytes) {
        while (this->bytes(queue) > bytes) erase_oldest(queue);
    }

  private:
    struct Home {
        int64_t nbytes = 0;
        int queue = nowhere;
    };
    struct Queue {
        IdList ids;
        int64_t bytes;
    };

    Queue& at(int queue) { return queues_[static_cast<size_t>(queue)]; }

    Links links_;
    ById<Home> homes_;
    std::vector<Queue> queues_;
};

}  // namespace accelera::policy
