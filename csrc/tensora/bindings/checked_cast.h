#pragma once

#include <string>

#include "tensora/bindings/convert.h"

namespace accelera::tensora {

/// Representation of a Python object for a message, at most 60 characters; the name of its type if
/// computing the representation fails.
std::string printed(nb::handle object);

/// Representation and type of a Python object for a message.
std::string printed_with_type(nb::handle object);

/// Raise a TypeError for a value that the user's code returned or stored: `subject` names the operation and
/// the value, `expected` the types that it takes.
[[noreturn]] void refuse_value(nb::handle value, const std::string& subject, const char* expected);

/// A value that the user's code returned or stored, as a C++ value; TypeError if it has another type.
template <typename Value>
Value checked_cast(nb::handle value, const std::string& subject, const char* expected) {
    Value result{};
    if (!nb::try_cast<Value>(value, result)) refuse_value(value, subject, expected);
    return result;
}

/// A tensor, or null for None; TypeError for anything else.
T checked_optional_tensor(nb::handle value, const std::string& subject);

}  // namespace accelera::tensora
