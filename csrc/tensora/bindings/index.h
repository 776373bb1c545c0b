#pragma once

#include "tensora/bindings/convert.h"

namespace accelera::tensora {

/// x[key], with all that Python and NumPy allow.
T get_item(const T& x, nb::handle key);
/// x[key] = value
void set_item(const T& x, nb::handle key, nb::handle value);

}  // namespace accelera::tensora
