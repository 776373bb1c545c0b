#include "bindings/policy.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <unordered_set>

#include "common/error.h"

using namespace nanobind::literals;

namespace accelera {
namespace {

using policy::AnyPolicy;
using policy::Id;
using policy::Time;

[[noreturn]] void refuse(const std::string& problem) { throw ArgumentError("[policy] " + problem); }

class PythonPolicy final : public AnyPolicy {
  public:
    explicit PythonPolicy(nb::object object) : object_(std::move(object)) {}

    void miss(Id id, int64_t nbytes, Time time, bool write) override {
        object_.attr("miss")(id, nbytes, time, write);
    }
    void insert(Id id, int64_t nbytes, Time time, bool write) override {
        object_.attr("insert")(id, nbytes, time, write);
    }
    void touch(Id id, Time time, bool write) override { object_.attr("touch")(id, time, write); }
    void evict(Id id) override { object_.attr("evict")(id); }
    void remove(Id id) override { object_.attr("remove")(id); }
    Id victim(const policy::Evictable& evictable) override {
        // The policy may keep the callback: it is valid during this call only.
        const auto current = std::make_shared<const policy::Evictable*>(&evictable);
        const auto end = [&current] { *current = nullptr; };
        nb::object victim;
        try {
            victim = object_.attr("victim")(nb::cpp_function([current](Id id) {
                if (!*current)
                    refuse("evictable() is called after victim() returned; call it in victim() only");
                return (**current)(id);
            }));
        } catch (...) {
            end();
            throw;
        }
        end();
        Id id = policy::none;
        if (!victim.is_none() && !nb::try_cast<Id>(victim, id))
            refuse("victim() returned " + std::string(nb::repr(victim).c_str()) +
                   ", expected the number of a buffer or None");
        return id;
    }
    bool dead(Id id) const override { return nb::cast<bool>(object_.attr("dead")(id)); }

  private:
    nb::object object_;
};

/// A compiled policy as Python's pool uses it.
class NativePolicy {
  public:
    NativePolicy(const std::string& name, GivenKnowledge known)
        : known_(std::move(known)), policy_(policy::make_policy(name, known_.view())) {
        if (!policy_) throw ArgumentError("[policy] no policy is called " + name);
    }

    // Compiled users of a policy keep the protocol; callers in Python are checked here.

    void miss(Id id, int64_t nbytes, Time time, bool write) {
        check(id, time);
        policy_->miss(id, nbytes, time, write);
        gone_.erase(id);
    }
    void insert(Id id, int64_t nbytes, Time time, bool write) {
        check(id, time);
        if (!residents_.insert(id).second)
            refuse("insert: buffer " + std::to_string(id) + " is resident already");
        // Policies that remember evicted buffers expect the miss that comes before one returns.
        if (gone_.erase(id)) policy_->miss(id, nbytes, time, write);
        policy_->insert(id, nbytes, time, write);
    }
    void touch(Id id, Time time, bool write) {
        check(id, time);
        require_resident("touch", id);
        policy_->touch(id, time, write);
    }
    void evict(Id id) {
        require_resident("evict", id);
        policy_->evict(id);
        residents_.erase(id);
        gone_.insert(id);
    }
    void remove(Id id) {
        require_resident("remove", id);
        policy_->remove(id);
        residents_.erase(id);
        gone_.insert(id);
    }
    nb::object victim(const nb::callable& evictable) {
        const Busy busy(is_busy_);
        const Id id = policy_->victim([&evictable](Id each) { return nb::cast<bool>(evictable(each)); });
        return id == policy::none ? nb::none() : nb::cast(id);
    }
    bool dead(Id id) {
        require_resident("dead", id);
        return policy_->dead(id);
    }

  private:
    static constexpr Time before_all = -1;  // of buffers that are resident before the first access
    static constexpr Id most = 1 << 26;     // of policies that do not know the number of buffers

    struct Busy {
        explicit Busy(bool& flag) : flag(flag) { flag = true; }
        ~Busy() { flag = false; }
        bool& flag;
    };

    void check(Id id, Time time) const {
        if (is_busy_) refuse("the policy is changed while it chooses a victim");
        if (id < 0 || id >= most)
            refuse("buffer " + std::to_string(id) + ", expected a number from 0 to " +
                   std::to_string(most - 1));
        if (time < before_all) refuse("access " + std::to_string(time) + ", expected a number from 0");
    }
    void require_resident(const char* method, Id id) const {
        if (is_busy_) refuse("the policy is changed while it chooses a victim");
        if (!residents_.count(id))
            refuse(std::string(method) + ": buffer " + std::to_string(id) +
                   " is not resident; insert it first");
    }

    GivenKnowledge known_;
    std::unique_ptr<AnyPolicy> policy_;
    std::unordered_set<Id> residents_;
    std::unordered_set<Id> gone_;  ///< and not missed since
    bool is_busy_ = false;
};

std::map<std::string, std::vector<std::string>> needs_in_words() {
    using policy::Knowledge;
    const std::vector<std::pair<unsigned, std::string>> words = {{Knowledge::capacity, "capacity_bytes"},
                                                                 {Knowledge::uses, "next_use"},
                                                                 {Knowledge::reads, "next_read"},
                                                                 {Knowledge::scores, "score"}};
    std::map<std::string, std::vector<std::string>> found;
    for (const auto& [name, needs] : policy::policy_needs()) {
        auto& named = found[name];
        for (const auto& [need, word] : words) {
            if (needs & need) named.push_back(word);
        }
    }
    return found;
}

void bind_knowledge(nb::module_& module) {
    nb::class_<GivenKnowledge>(module, "PolicyKnowledge", "What a policy may know beforehand.")
        .def(
            "__init__",
            [](GivenKnowledge* self, int64_t capacity_bytes, Id buffers, std::optional<Column<Time>> next_use,
               std::optional<Column<Time>> next_read, std::optional<Column<double>> score, uint64_t seed) {
                new (self) GivenKnowledge{capacity_bytes,       buffers,          std::move(next_use),
                                          std::move(next_read), std::move(score), seed};
            },
            "capacity_bytes"_a = 0, "buffers"_a = 0, "next_use"_a = nb::none(), "next_read"_a = nb::none(),
            "score"_a = nb::none(), "seed"_a = 0)
        .def_ro("capacity_bytes", &GivenKnowledge::capacity_bytes);
}

}  // namespace

std::unique_ptr<AnyPolicy> python_policy(nb::object object) {
    return std::make_unique<PythonPolicy>(std::move(object));
}

}  // namespace accelera

void init_policy(nanobind::module_& module) {
    using namespace accelera;
    bind_knowledge(module);
    nb::class_<NativePolicy>(module, "Policy", "A compiled eviction policy; see accelera.policy.")
        .def(nb::init<const std::string&, GivenKnowledge>(), "name"_a, "known"_a)
        .def("miss", &NativePolicy::miss)
        .def("insert", &NativePolicy::insert)
        .def("touch", &NativePolicy::touch)
        .def("evict", &NativePolicy::evict)
        .def("remove", &NativePolicy::remove)
        .def("victim", &NativePolicy::victim)
        .def("dead", &NativePolicy::dead);
    module.def("policy_needs", &needs_in_words,
               "Per compiled policy, the arguments of PolicyKnowledge that it cannot do without.");
}
