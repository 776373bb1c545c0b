#include "trace/pickle_stack.h"

#include <numeric>

namespace accelera::trace {

namespace {

/// A tuple of a snapshot has a few numbers.
constexpr uint64_t largest_weight = 1024;

}  // namespace

bool PickleStack::push(uint64_t weight) {
    if (weight > largest_weight) return false;
    values_.push_back(uint16_t(weight));
    return true;
}

/// Values below the last mark are out of reach, as in the unpickler.
bool PickleStack::pop(size_t count) {
    const size_t bottom = marks_.empty() ? 0 : marks_.back();
    if (values_.size() - bottom < count) return false;
    values_.resize(values_.size() - count);
    return true;
}

bool PickleStack::pop_to_mark() {
    if (marks_.empty()) return false;
    values_.resize(marks_.back());
    marks_.pop_back();
    return true;
}

bool PickleStack::pop_value_or_mark() {
    if (!marks_.empty() && marks_.back() == values_.size()) {
        marks_.pop_back();
        return true;
    }
    return pop(1);
}

bool PickleStack::replace(size_t count, uint64_t weight) { return pop(count) && push(weight); }

/// Replace the last `count` values by a container of them.
bool PickleStack::combine(size_t count) {
    if (values_.size() < count) return false;
    const uint64_t weight = std::accumulate(values_.end() - ptrdiff_t(count), values_.end(), uint64_t(1));
    return replace(count, weight);
}

bool PickleStack::combine_to_mark() {
    if (marks_.empty()) return false;
    const size_t count = values_.size() - marks_.back();
    if (!combine(count)) return false;
    marks_.pop_back();
    return true;
}

bool PickleStack::remember(uint64_t place) {
    if (values_.empty()) return false;
    if (place >= memo_.size()) memo_.resize(size_t(place) + 1);
    memo_count_ += memo_[size_t(place)] == 0;
    memo_[size_t(place)] = values_.back();
    return true;
}

bool PickleStack::recall(uint64_t place) {
    return place < memo_.size() && memo_[size_t(place)] != 0 && push(memo_[size_t(place)]);
}

bool PickleStack::apply(uint8_t code, uint64_t place) {
    switch (code) {
        case '(':
            marks_.push_back(values_.size());
            return true;
        case '0':
            return pop_value_or_mark();
        case '1':
            return pop_to_mark();
        case '2':
            return !values_.empty() && push(values_.back());
        case 't':
        case 0x91:  // FROZENSET
        case 'o':   // OBJ: the class and its arguments
        case 'i':   // INST
            return combine_to_mark();
        case 0x85:
            return combine(1);  // TUPLE1
        case 0x86:
            return combine(2);  // TUPLE2
        case 0x87:
            return combine(3);  // TUPLE3
        case 'R':
        case 0x81:
            return combine(2);  // REDUCE, NEWOBJ: a set of the arguments
        case 0x92:
            return combine(3);  // NEWOBJ_EX
        case 'l':
        case 'd':
            return pop_to_mark() && push(1);  // lists and dicts have no hash
        case 'e':
        case 'u':
        case 0x90:
            return pop_to_mark();  // APPENDS, SETITEMS, ADDITEMS
        case 'a':
        case 'b':
            return pop(1);  // APPEND, BUILD
        case 's':
            return pop(2);  // SETITEM
        case 0x93:
            return replace(2, 1);  // STACK_GLOBAL
        case 'Q':
            return replace(1, 1);  // BINPERSID
        case 'p':
        case 'q':
        case 'r':
            return remember(place);  // PUT
        case 0x94:
            return remember(memo_count_);  // MEMOIZE
        case 'g':
        case 'h':
        case 'j':
            return recall(place);
        case 0x80:
        case 0x95:
        case 0x98:
            return true;  // PROTO, FRAME, READONLY_BUFFER
        default:
            return push(1);  // constants and empty containers
    }
}

}  // namespace accelera::trace
