#include "bindings/policy.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

using namespace nanobind::literals;

namespace accelera {
namespace {

using policy::AnyPolicy;
using policy::Id;
using policy::Time;

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
        const nb::object found =
            object_.attr("victim")(nb::cpp_function([&evictable](Id id) { return evictable(id); }));
        return found.is_none() ? policy::none : nb::cast<Id>(found);
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
        if (!policy_) throw nb::value_error(("[policy] no policy is called " + name).c_str());
    }
    AnyPolicy& operator*() { return *policy_; }

  private:
    GivenKnowledge known_;
    std::unique_ptr<AnyPolicy> policy_;
};

nb::object victim(NativePolicy& self, const nb::callable& evictable) {
    const Id id = (*self).victim([&evictable](Id each) { return nb::cast<bool>(evictable(each)); });
    return id == policy::none ? nb::none() : nb::cast(id);
}

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
        .def("miss", [](NativePolicy& self, Id id, int64_t nbytes, Time time,
                        bool write) { (*self).miss(id, nbytes, time, write); })
        .def("insert", [](NativePolicy& self, Id id, int64_t nbytes, Time time,
                          bool write) { (*self).insert(id, nbytes, time, write); })
        .def("touch",
             [](NativePolicy& self, Id id, Time time, bool write) { (*self).touch(id, time, write); })
        .def("evict", [](NativePolicy& self, Id id) { (*self).evict(id); })
        .def("remove", [](NativePolicy& self, Id id) { (*self).remove(id); })
        .def("victim", &victim)
        .def("dead", [](NativePolicy& self, Id id) { return (*self).dead(id); });
    module.def("policy_needs", &needs_in_words,
               "Per compiled policy, the arguments of PolicyKnowledge that it cannot do without.");
}
