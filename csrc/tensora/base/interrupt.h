#pragma once

namespace accelera::tensora {

/// Called between the operations of a backward pass and between pieces of long work; throws to end it.
void set_interrupt_check(void (*check)());
void check_interrupt();
/// Whether an interrupt is pending for which `check_interrupt` will throw. Calls no handler, so it is safe
/// where no handler may run.
void set_interrupt_probe(bool (*probe)());
bool is_interrupt_pending();

}  // namespace accelera::tensora
