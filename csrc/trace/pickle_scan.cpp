#include "trace/pickle_scan.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "trace/pickle_stack.h"

namespace accelera::trace {

namespace {

/// How an opcode's argument is encoded; see `pickletools.py` of CPython for the list of opcodes.
enum class Argument : uint8_t { unknown, none, fixed, counted, line, two_lines };

struct Opcode {
    Argument argument = Argument::unknown;
    uint8_t width = 0;     ///< bytes of a fixed argument, or of the length before a counted one
    bool is_memo = false;  ///< the argument is a place in the memo
};

constexpr std::array<Opcode, 256> opcode_table() {
    std::array<Opcode, 256> table{};
    for (const char code :
         {'(', '.', '0', '1', '2', 'N', 'Q', 'R', 'b', 'd', '}', 'a', 'e', 'l', ']', 'o', 's', 't', ')', 'u'})
        table[uint8_t(code)] = {Argument::none};
    for (const int code :
         {0x81, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8f, 0x90, 0x91, 0x92, 0x93, 0x94, 0x97, 0x98})
        table[size_t(code)] = {Argument::none};
    for (const char code : {'F', 'I', 'L', 'S', 'V', 'P'}) table[uint8_t(code)] = {Argument::line};
    for (const char code : {'c', 'i'}) table[uint8_t(code)] = {Argument::two_lines};
    table['p'] = table['g'] = {Argument::line, 0, true};
    table['q'] = table['h'] = {Argument::fixed, 1, true};
    table['r'] = table['j'] = {Argument::fixed, 4, true};
    table['J'] = table[0x84] = {Argument::fixed, 4};
    table['K'] = table[0x80] = table[0x82] = {Argument::fixed, 1};
    table['M'] = table[0x83] = {Argument::fixed, 2};
    table['G'] = table[0x95] = {Argument::fixed, 8};
    table['U'] = table['C'] = table[0x8a] = table[0x8c] = {Argument::counted, 1};
    table['T'] = table['X'] = table['B'] = table[0x8b] = {Argument::counted, 4};
    table[0x8d] = table[0x8e] = table[0x96] = {Argument::counted, 8};
    return table;
}

constexpr auto opcodes = opcode_table();

uint64_t little_endian(std::string_view bytes) {
    uint64_t value = 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | uint8_t(bytes[i]);
    return value;
}

/// Position after the next line feed; past the end where there is none.
size_t after_line(std::string_view data, size_t at) {
    const size_t end = data.find('\n', at);
    return end == std::string_view::npos ? data.size() + 1 : end + 1;
}

/// The number of a text line; the largest one for any other text. Python also accepts signs, spaces and
/// underscores between digits, which no pickler writes.
uint64_t number_of(std::string_view line) {
    uint64_t value = 0;
    const bool has_feed = !line.empty() && line.back() == '\n';
    const char* const end = line.data() + line.size() - has_feed;
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): `end` bounds the characters
    const auto result = std::from_chars(line.data(), end, value);
    return result.ec == std::errc() && result.ptr == end ? value : UINT64_MAX;
}

}  // namespace

int64_t find_oversized_opcode(std::string_view data) {
    PickleStack stack;
    uint64_t count = 0;
    for (size_t at = 0; at < data.size(); ++count) {
        const size_t begin = at;
        const uint8_t code = uint8_t(data[at++]);
        const Opcode& opcode = opcodes[code];
        if (code == '.' || opcode.argument == Argument::unknown) return -1;
        uint64_t place = 0;
        if (opcode.argument == Argument::line || opcode.argument == Argument::two_lines) {
            const size_t end = std::min(after_line(data, at), data.size());
            if (opcode.is_memo) place = number_of(data.substr(at, end - at));
            at = opcode.argument == Argument::line ? end : std::min(after_line(data, end), data.size());
        } else if (opcode.argument != Argument::none) {
            if (data.size() - at < opcode.width) return -1;  // truncated, which the unpickler reports
            const uint64_t value = little_endian(data.substr(at, opcode.width));
            at += opcode.width;
            if (opcode.is_memo) place = value;
            if (opcode.argument == Argument::counted) {
                if (value > data.size() - at) return int64_t(begin);
                at += size_t(value);
            }
        }
        if (place > count || !stack.apply(code, place)) return int64_t(begin);
    }
    return -1;
}

}  // namespace accelera::trace
