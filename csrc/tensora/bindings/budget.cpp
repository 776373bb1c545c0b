// Training steps inside a budget, as Python sees them: the log goes out, a plan comes in.
#include "tensora/core/budget.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>

#include "tensora/bindings/convert.h"

namespace accelera::tensora {

namespace {

/// An array of NumPy that owns what a vector holds.
template <typename Value>
nb::ndarray<nb::numpy, Value, nb::ndim<1>> array_of(std::vector<Value>&& values) {
    auto* const owned = new std::vector<Value>(std::move(values));
    owned->shrink_to_fit();
    const nb::capsule owner(owned,
                            [](void* data) noexcept { delete static_cast<std::vector<Value>*>(data); });
    return {owned->data(), {owned->size()}, owner};
}

/// Rows of different lengths as (starts, items).
template <typename Row>
nb::tuple lists_of(const StepLog& log, Row row) {
    std::vector<int64_t> starts{0};
    std::vector<int32_t> items;
    for (const StepOperation& operation : log.operations) {
        const std::span<const int32_t> some = (log.*row)(operation);
        items.insert(items.end(), some.begin(), some.end());
        starts.push_back(int64_t(items.size()));
    }
    return nb::make_tuple(array_of(std::move(starts)), array_of(std::move(items)));
}

nb::dict columns_of(const StepLog& log) {
    nb::dict columns;
    nb::list names;
    std::vector<double> flops;
    std::vector<int64_t> moved;
    std::vector<int64_t> workspace, nbytes, truths;
    std::vector<int32_t> born, freed;
    std::vector<uint8_t> pure, in_arena, lent;
    std::unordered_map<const char*, nb::str> known;  // names are those of the op table
    for (const StepOperation& operation : log.operations) {
        const OperationForm& form = log.form(operation);
        names.append(known.try_emplace(form.name, form.name).first->second);
        flops.push_back(form.flops);
        moved.push_back(form.moved_bytes);
        workspace.push_back(form.workspace_bytes + form.piece_bytes * thread_count());
        pure.push_back(form.pure);
    }
    for (const StepValue& value : log.values) {
        nbytes.push_back(value.nbytes);
        born.push_back(value.born);
        freed.push_back(value.freed);
        in_arena.push_back(value.in_arena);
        lent.push_back(value.lent);
        truths.push_back(value.truths);
    }
    columns["names"] = names;
    columns["flops"] = array_of(std::move(flops));
    columns["moved_bytes"] = array_of(std::move(moved));
    columns["workspace"] = array_of(std::move(workspace));
    columns["pure"] = array_of(std::move(pure));
    columns["nbytes"] = array_of(std::move(nbytes));
    columns["born"] = array_of(std::move(born));
    columns["freed"] = array_of(std::move(freed));
    columns["in_arena"] = array_of(std::move(in_arena));
    columns["lent"] = array_of(std::move(lent));
    columns["truths"] = array_of(std::move(truths));
    columns["reads"] = lists_of(log, &StepLog::reads);
    columns["writes"] = lists_of(log, &StepLog::writes);
    columns["births"] = lists_of(log, &StepLog::births);
    return columns;
}

/// Actions are (operation, whether after it, kind, subject), in their order.
std::shared_ptr<const StepPlan> plan_of(const std::shared_ptr<const StepLog>& log,
                                        const std::vector<std::array<int32_t, 4>>& actions,
                                        const std::vector<int64_t>& places) {
    const size_t n = log->operations.size();
    auto plan = std::make_shared<StepPlan>();
    plan->before.resize(n);
    plan->after.resize(n);
    plan->recipes.resize(n);
    plan->places = places;
    plan->log = log;
    for (const auto& [operation, after, kind, subject] : actions) {
        auto& list = after ? plan->after : plan->before;
        list.at(size_t(operation)).push_back({StepAction::Kind(kind), subject});
        if (StepAction::Kind(kind) == StepAction::Kind::run) plan->recipes.at(size_t(subject)) = 1;
    }
    return plan;
}

/// Keep them for Python.
struct BudgetHandle {
    Ref<StepBudget> budget;
};
struct LogHandle {
    std::shared_ptr<const StepLog> log;
};
struct PlanHandle {
    std::shared_ptr<const StepPlan> plan;
};

}  // namespace

void bind_budget(nb::module_& module) {
    nb::class_<StepReport>(module, "StepReport", "Measured bytes of a training step inside a budget.")
        .def_ro("followed", &StepReport::followed)
        .def_ro("departure", &StepReport::departure)
        .def_ro("peak_bytes", &StepReport::peak_bytes)
        .def_ro("low_top_bytes", &StepReport::low_top_bytes)
        .def_ro("high_bytes", &StepReport::high_bytes)
        .def_ro("spilled_bytes", &StepReport::spilled_bytes)
        .def_ro("needed_bytes", &StepReport::needed_bytes)
        .def_ro("refusal", &StepReport::refusal)
        .def_ro("reruns", &StepReport::reruns);
    // NOLINTNEXTLINE(bugprone-unused-raii): the constructor adds the class to the module
    nb::class_<PlanHandle>(module, "StepPlan",
                           "What a step does besides its operations; made by StepBudget.");
    nb::class_<LogHandle>(module, "StepLog", "Operations and memory of a step as it ran.")
        .def("columns", [](const LogHandle& self) { return columns_of(*self.log); })
        .def("plan", [](const LogHandle& self, const std::vector<std::array<int32_t, 4>>& actions,
                        const std::vector<int64_t>& places) {
            return PlanHandle{plan_of(self.log, actions, places)};
        });
    nb::class_<BudgetHandle>(module, "StepBudget", "Arena of training steps, their log and their plan.")
        .def("__init__",
             [](BudgetHandle* self, int64_t capacity, std::string folder, const std::string& device) {
                 new (self) BudgetHandle{
                     Ref<StepBudget>(new StepBudget(capacity, std::move(folder), device_named(device)))};
             })
        .def(
            "begin",
            [](BudgetHandle& self, int64_t room, const PlanHandle* plan) {
                self.budget->begin(room, plan ? plan->plan : nullptr);
            },
            nb::arg("room"), nb::arg("plan").none())
        .def("end", [](BudgetHandle& self) { self.budget->end(); })
        .def("log", [](const BudgetHandle& self) { return LogHandle{self.budget->log()}; })
        .def_prop_ro("operation_count",
                     [](const BudgetHandle& self) { return self.budget->log()->operations.size(); })
        .def_prop_ro("report", [](const BudgetHandle& self) { return self.budget->report(); })
        .def_prop_ro("capacity", [](const BudgetHandle& self) { return self.budget->capacity(); })
        .def_prop_ro("used_bytes", [](const BudgetHandle& self) { return self.budget->used_bytes(); });
}

}  // namespace accelera::tensora
