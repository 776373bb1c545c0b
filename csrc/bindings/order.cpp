#include "policy/order.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;
using namespace nb::literals;

void init_order(nb::module_& module) {
    using accelera::policy::Order;
    nb::class_<Order>(module, "Order", "Learns an order that comes round again; see csrc/policy/order.h.")
        .def(nb::init<>())
        .def("note", &Order::note, "id"_a, "Append `id` to the history.")
        .def("ahead", &Order::ahead, "k"_a,
             "What is expected as the k-th from now, counted from 1; -1 when nothing is known.");
}
