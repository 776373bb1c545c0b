#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace accelera::tensora {

/// The Python exception that an Error becomes.
enum class Kind { value, type, index, runtime, not_implemented, memory };

struct Error : std::runtime_error {
    Error(Kind kind, const std::string& words) : std::runtime_error(words), kind(kind) {}
    Kind kind;
};

/// The parts, one after the other.
template <typename... Parts>
std::string text(const Parts&... parts) {
    std::ostringstream stream;
    (stream << ... << parts);
    return stream.str();
}

template <typename... Parts>
[[noreturn]] void fail(Kind kind, const Parts&... parts) {
    throw Error(kind, text(parts...));
}

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
    if (!holds) [[unlikely]]
        fail(Kind::value, parts...);
}

}  // namespace accelera::tensora
