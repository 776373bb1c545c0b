#include "memory/arena.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace accelera::memory {
namespace {

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
using Log = nb::ndarray<nb::numpy, int64_t, nb::ndim<2>>;

/// What a refused allocation of this thread is to raise; owned.
thread_local PyObject* refusal = nullptr;

/// Whether this thread is making room: what it allocates meanwhile must not come from an arena. Which arena
/// it takes from may change meanwhile, and an arena may be gone afterwards.
thread_local bool making_room = false;

/// Ask Python for room; what it raises is kept for `arena_allocate`.
Arena::OnFull asking(nb::object function) {
    // Shared, so that copies made without the GIL count no references of Python's.
    auto held = std::shared_ptr<nb::object>(new nb::object(std::move(function)), [](nb::object* each) {
        if (!Py_IsInitialized()) return;
        const nb::gil_scoped_acquire gil;
        delete each;
    });
    return [held](int64_t missing) {
        if (!Py_IsInitialized()) return false;
        const nb::gil_scoped_acquire gil;
        const bool outer = std::exchange(making_room, true);
        bool made = false;
        try {
            made = nb::cast<bool>((*held)(missing));
        } catch (nb::python_error& error) {
            Py_XDECREF(refusal);
            refusal = error.value().inc_ref().ptr();
        }
        making_room = outer;
        return made;
    };
}

/// An arena as its owner holds it.
class Owner {
  public:
    Owner(int64_t limit_bytes, const std::optional<nb::object>& on_full)
        : arena_(Arena::create(limit_bytes, on_full ? asking(*on_full) : Arena::OnFull())) {}
    ~Owner() { Arena::retire(arena_); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

    Arena& operator*() const { return *arena_; }
    Arena* get() const { return arena_; }

  private:
    Arena* arena_;
};

/// Whether `memory` was an arena's, and is released now.
bool arena_release(void* memory) {
    Arena* arena = Arena::of(memory);
    if (arena) arena->release(memory);
    return arena != nullptr;
}

Bytes slab(Owner& owner, int64_t nbytes) {
    void* memory = nullptr;
    {
        const nb::gil_scoped_release released;
        memory = (*owner).allocate_committed(nbytes);
    }
    if (!memory) throw std::bad_alloc();
    // The arena stays as long as something was taken from it.
    const nb::capsule life(memory, [](void* each) noexcept { arena_release(each); });
    return Bytes(static_cast<uint8_t*>(memory), {static_cast<size_t>(nbytes)}, life);
}

Log log_of(Owner& owner) {
    auto* events = new std::vector<Arena::Event>((*owner).take_log());
    const nb::capsule life(events,
                           [](void* each) noexcept { delete static_cast<std::vector<Arena::Event>*>(each); });
    static_assert(sizeof(Arena::Event) == 2 * sizeof(int64_t));
    return Log(reinterpret_cast<int64_t*>(events->data()), {events->size(), 2}, life);
}

/// Null with `*refused` false: not ours. Called by the allocator put into torch.
void* arena_allocate(size_t nbytes, bool* refused) {
    Arena* arena = current_arena();
    *refused = false;
    if (!arena || making_room || static_cast<int64_t>(nbytes) < Arena::least_bytes) return nullptr;
    void* memory = arena->allocate(static_cast<int64_t>(nbytes));
    *refused = !memory;
    return memory;
}

/// The exception of Python's for which this thread's latest allocation was refused, or null; the caller owns
/// it.
PyObject* arena_refusal() { return std::exchange(refusal, nullptr); }

template <class Function>
int64_t address(Function* function) {
    return reinterpret_cast<int64_t>(function);
}

}  // namespace
}  // namespace accelera::memory

void init_arena(nb::module_& module) {
    using namespace accelera::memory;
    using Self = Owner&;
    nb::class_<Owner>(module, "Arena", "Memory of one budget; see csrc/memory/arena.h.")
        .def(nb::init<int64_t, std::optional<nb::object>>(), "limit_bytes"_a, "on_full"_a = nb::none(),
             "`on_full(missing_bytes)` is asked to make room; it returns whether it did, or raises.")
        .def("slab", &slab, "nbytes"_a, nb::rv_policy::reference,
             "Page-aligned bytes that were committed; they go back with the last reference.")
        .def(
            "commit", [](Self self, int64_t nbytes) { (*self).commit(nbytes); }, "nbytes"_a,
            "Count so many more bytes (or fewer) as promised to slabs.")
        .def(
            "trim", [](Self self) { (*self).trim(); }, "Give free pages back to the system.")
        .def("reset_peaks", [](Self self) { (*self).reset_peaks(); })
        .def(
            "start_log", [](Self self) { (*self).start_log(); }, "Begin to record ordinary allocations.")
        .def("take_log", &log_of, "Return rows of (block, bytes; negative when released), and stop.")
        .def_prop_ro("log_size", [](Self self) { return (*self).log_size(); })
        .def(
            "block_at", [](Self self, int64_t at) { return (*self).block_at(reinterpret_cast<void*>(at)); },
            "address"_a, "Number of the ordinary block at an address, or -1.")
        .def_prop_rw(
            "limit_bytes", [](Self self) { return (*self).limit_bytes(); },
            [](Self self, int64_t nbytes) { (*self).set_limit(nbytes); })
        .def_prop_ro("ordinary_bytes", [](Self self) { return (*self).ordinary_bytes(); })
        .def_prop_ro("committed_bytes", [](Self self) { return (*self).committed_bytes(); })
        .def_prop_ro("touched_bytes", [](Self self) { return (*self).touched_bytes(); })
        .def_prop_ro("peak_ordinary_bytes", [](Self self) { return (*self).peak_ordinary_bytes(); })
        .def_prop_ro("peak_bytes", [](Self self) { return (*self).peak_bytes(); })
        .def_prop_ro("peak_touched_bytes", [](Self self) { return (*self).peak_touched_bytes(); })
        .def(
            "keep_pages", [](Self self, bool keeps) { (*self).set_keeps_pages(keeps); }, "keeps"_a,
            "Whether pages of what is released are kept for what comes next.")
        .def(
            "enter", [](Self self) { return address(enter_arena(self.get())); },
            "Let this thread's tensors come from here; returns a token of the arena before, for `leave`.");
    module.def(
        "leave_arena", [](int64_t token) { enter_arena(reinterpret_cast<Arena*>(token)); }, "token"_a,
        "Undo `Arena.enter`.");
    module.def(
        "arena_functions",
        [] {
            return std::make_tuple(address(&arena_allocate), address(&arena_release),
                                   address(&arena_refusal));
        },
        "Addresses of what the allocator of csrc/torch/allocator.h calls.");
}
