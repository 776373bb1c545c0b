#include "tensora/base/interrupt.h"

namespace accelera::tensora {

namespace {
// Set once by the bindings, before other threads exist.
void (*interrupt_check)() = nullptr;
bool (*interrupt_probe)() = nullptr;
}  // namespace

void set_interrupt_check(void (*check)()) { interrupt_check = check; }
void check_interrupt() {
    if (interrupt_check) interrupt_check();
}
void set_interrupt_probe(bool (*probe)()) { interrupt_probe = probe; }
bool is_interrupt_pending() { return interrupt_probe && interrupt_probe(); }

}  // namespace accelera::tensora
