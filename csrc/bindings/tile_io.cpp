#include "cpu/tile_io.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>

#include "common/error.h"
#include "cpu/transfer_queue.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace accelera {
namespace {

using Strides = std::vector<int64_t>;
using Failure = std::optional<std::tuple<int, int64_t, int64_t, int64_t>>;

/// A strided view of a Python object's memory, held while the transfer runs.
class Memory {
  public:
    Memory(const nb::object& array, bool writable) {
        if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0)) != 0)
            throw nb::python_error();
    }
    ~Memory() { PyBuffer_Release(&view_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    io::Region region(int file, int64_t offset, const Strides& strides, int direct_file,
                      bool prefer_cached) const {
        if (strides.size() != static_cast<size_t>(view_.ndim))
            throw ArgumentError("[tile_io] one file stride per axis of the array is needed");
        io::Region region{file,           direct_file, offset,       static_cast<char*>(view_.buf),
                          view_.itemsize, {},          prefer_cached};
        for (int i = 0; i < view_.ndim; ++i)
            region.axes.push_back({view_.shape[i], strides[static_cast<size_t>(i)], view_.strides[i]});
        return region;
    }

  private:
    Py_buffer view_{};
};

Failure failure(const io::Outcome& outcome) {
    if (outcome.done) return std::nullopt;
    return std::make_tuple(outcome.error, outcome.offset, outcome.wanted, outcome.got);
}

template <io::Outcome (*transfer)(const io::Region&), bool writable>
Failure move(int file, int64_t offset, const Strides& strides, const nb::object& array, int direct_file,
             bool prefer_cached) {
    const Memory memory(array, writable);
    const io::Region region = memory.region(file, offset, strides, direct_file, prefer_cached);
    io::Outcome outcome;
    {
        const nb::gil_scoped_release released;
        outcome = transfer(region);
    }
    return failure(outcome);
}

}  // namespace
}  // namespace accelera

void init_tile_io(nb::module_& module) {
    using namespace accelera;
    module.def(
        "read_region", &move<io::read_region, true>, "file"_a, "offset"_a, "strides"_a, "out"_a,
        "direct_file"_a = -1, "prefer_cached"_a = false,
        "Fill `out` (any strides) from a file whose element [0, …] lies at byte `offset` and whose\n"
        "neighbours along axis i lie `strides[i]` bytes apart (negative: backwards).\n\n"
        "Returns None, or (errno, offset, wanted, got) of the request that failed; errno 0 means that\n"
        "the file ended. `direct_file` is an O_DIRECT descriptor of the same file; `prefer_cached` still\n"
        "takes from the page cache what is there.");
    module.def("write_region", &move<io::write_region, false>, "file"_a, "offset"_a, "strides"_a, "data"_a,
               "direct_file"_a = -1, "prefer_cached"_a = false,
               "The reverse of read_region: store `data` (any strides).");
    module.def(
        "set_io_backend",
        [](const std::string& name) {
            if (name == "automatic")
                io::set_backend(io::Backend::automatic);
            else if (name == "kernel")
                io::set_backend(io::Backend::kernel);
            else if (name == "threads")
                io::set_backend(io::Backend::threads);
            else
                throw ArgumentError("[io] no backend " + name + "; give automatic, kernel or threads");
        },
        "name"_a,
        "Choose what moves bytes past the page cache: the kernel's asynchronous I/O, a pool of threads, or\n"
        "the first of them that works.");
    module.attr("STAGING_BYTES_PER_THREAD") = io::staging_bytes;
}
