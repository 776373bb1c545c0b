#pragma once
// Errors that become classes of `accelera.errors` in Python.

#include <stdexcept>

namespace accelera {

/// A caller of the extension module, or a policy in Python, passed an unusable value: `ArgumentError`.
struct ArgumentError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

/// The build or the device cannot do it: `DeviceError`.
struct DeviceError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace accelera
