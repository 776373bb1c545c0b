// DLPack (https://dmlc.github.io/dlpack, versions 0 and 1) and the buffer protocol, both ways, without
// copying.
#include <cstring>

#include "tensora/bindings/checked_cast.h"
#include "tensora/bindings/convert.h"
#include "tensora/core/op.h"
#include "tensora/device/driver.h"
#include "tensora/functions.h"
#include "tensora/jit/capture.h"

namespace accelera::tensora {

namespace {

struct Place {
    int32_t type;
    int32_t id;
};
struct Type {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};
struct Described {
    void* data;
    Place device;
    int32_t n_dims;
    Type type;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};
struct Managed {
    Described tensor;
    void* context;
    void (*deleter)(Managed*);
};
struct ManagedVersioned {
    uint32_t major, minor;
    void* context;
    void (*deleter)(ManagedVersioned*);
    uint64_t flags;
    Described tensor;
};
constexpr uint64_t read_only = 1;
constexpr uint64_t copied = 2;
constexpr int32_t on_cpu = 1, on_cuda = 2, on_cpu_pinned = 3;
/// Streams that DLPack gives numbers to: none is waited for, and the two default streams.
constexpr int64_t no_stream = -1;

Place place_of(Device device) {
    if (device.is_cpu()) return {on_cpu, 0};
    return {on_cuda, device.index};
}

// Codes of kinds: 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool.
Type type_of(DType dtype) {
    constexpr uint8_t codes[n_dtypes] = {6, 1, 1, 1, 1, 0, 0, 0, 0, 2, 4, 2, 2, 5, 5};
    return {codes[int(dtype)], uint8_t(8 * size_of(dtype)), 1};
}

DType dtype_of(Type type) {
    for (int i = 0; i < n_dtypes; ++i) {
        const Type known = type_of(DType(i));
        if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return DType(i);
    }
    fail(Kind::type, "[from_dlpack] elements with type code ", int(type.code), ", ", int(type.bits),
         " bits and ", type.lanes, " lanes; tensora has none such");
}

/// What an exported tensor keeps alive until its importer is done.
struct Lent {
    Ref<Storage> storage;
    Dims shape;
    Dims strides;
    cuda::Stream stream;  ///< the importer's, on a device

    Lent(const Tensor& tensor, cuda::Stream stream)
        : storage(tensor.storage()), shape(tensor.shape()), strides(tensor.strides()), stream(stream) {}
    /// The importer's kernels may still run: what comes next in the memory waits for them.
    ~Lent() {
        const Device device = storage->device();
        if (!device.is_cpu()) cuda::order_after_importer(device.index, stream, storage->stream());
    }
    Lent(const Lent&) = delete;
    Described described(const Tensor& tensor) {
        char* const data = tensor.device().is_cpu() ? tensor.bytes() : tensor.device_bytes();
        return {data,
                place_of(tensor.device()),
                int32_t(shape.size()),
                type_of(tensor.dtype()),
                shape.begin(),
                strides.begin(),
                0};
    }
};

template <typename M>
nb::object capsule_of(const T& tensor, const char* name, M* managed, cuda::Stream stream) {
    auto* const lent = new Lent(*tensor, stream);
    managed->tensor = lent->described(*tensor);
    managed->context = lent;
    managed->deleter = [](M* self) {
        delete static_cast<Lent*>(self->context);
        delete self;
    };
    PyObject* const capsule = PyCapsule_New(managed, name, [](PyObject* given) {
        // Renamed by whoever took it; otherwise nobody did.
        for (const char* unused : {"dltensor", "dltensor_versioned"})
            if (PyCapsule_IsValid(given, unused)) {
                M* const left = static_cast<M*>(PyCapsule_GetPointer(given, unused));
                left->deleter(left);
            }
    });
    return nb::steal(capsule);
}

}  // namespace

namespace {

/// From now on somebody else may write to the memory: nothing that reads it waits.
void lend(const Tensor& tensor) {
    if (Capture::here()) Capture::here()->refuse_read(tensor, "printing, or another library,");
    settle_readers(*tensor.storage());
    tensor.storage()->set_lent();
}

}  // namespace

namespace {

/// Make the importer's stream wait for the work submitted so far. Returns that stream; the default one if
/// the importer names none.
cuda::Stream hand_over(const Tensor& tensor, std::optional<int64_t> stream) {
    const Device device = tensor.device();
    if (device.is_cpu()) {
        require(!stream, "[__dlpack__] a stream for the CPU, which has none");
        return nullptr;
    }
    tensor.device_bytes();  // on this thread's stream from now on
    const auto later = reinterpret_cast<cuda::Stream>(stream == no_stream ? 1 : stream.value_or(1));
    if (stream != no_stream) cuda::order_streams(device.index, cuda::current_stream(device.index), later);
    return later;
}

}  // namespace

nb::object to_dlpack(const T& given, nb::handle max_version, std::optional<bool> copy_wanted,
                     std::optional<int64_t> stream) {
    if (given->tracked() && grad_enabled())
        fail(
            Kind::value,
            "[__dlpack__] the tensor requires gradients, which another library would not see; use .detach()");
    const T tensor = copy_wanted.value_or(false) ? copy(given->detach()) : given;
    lend(*tensor);
    const cuda::Stream importer = hand_over(*tensor, stream);
    const bool versioned = !max_version.is_none() &&
                           checked_cast<std::pair<int, int>>(max_version, "[__dlpack__] max_version is",
                                                             "None or a tuple (major, minor)")
                                   .first >= 1;
    if (versioned) {
        auto* const managed = new ManagedVersioned{};
        managed->major = 1;
        managed->flags =
            (tensor->storage()->writable() ? 0 : read_only) | (copy_wanted.value_or(false) ? copied : 0);
        return capsule_of(tensor, "dltensor_versioned", managed, importer);
    }
    if (!tensor->storage()->writable())
        fail(Kind::value,
             "[__dlpack__] the memory is read-only, which only DLPack 1 can say; give max_version=(1, 0)");
    return capsule_of(tensor, "dltensor", new Managed{}, importer);
}

namespace {

/// Kernels move whole elements: one at an odd address ends the process's use of the device.
void check_alignment(const char* data, int64_t size, DType dtype) {
    const int64_t each = size_of(dtype);
    if (size > 0 && reinterpret_cast<uintptr_t>(data) % uintptr_t(each) != 0)
        fail(Kind::value, "[from_dlpack] elements of ", name_of(dtype),
             " on a CUDA device at an address that is no multiple of ", each,
             " bytes; copy the array in its library before");
}

template <typename M>
T import(M* managed, bool writable) {
    const Described& given = managed->tensor;
    if (given.device.type < on_cpu || given.device.type > on_cpu_pinned)
        fail(Kind::value, "[from_dlpack] the array lies on device type ", given.device.type,
             "; only memory of the CPU and of CUDA devices is imported; copy it there before");
    const Device device = given.device.type == on_cuda ? Device{int8_t(given.device.id)} : cpu;
    const DType dtype = dtype_of(given.type);
    Layout layout{Dims(given.shape, given.n_dims), {}, 0};
    layout.strides = given.strides ? Dims(given.strides, given.n_dims) : strides_of(layout.shape);
    char* const data = static_cast<char*>(given.data) + given.byte_offset;
    if (!device.is_cpu()) check_alignment(data, layout.shape.product(), dtype);
    const auto release = [managed] {
        if (managed->deleter) managed->deleter(managed);
    };
    const Ref<Storage> storage = Storage::borrow(
        data, layout.shape.product() * size_of(dtype), writable,
        [release] {
            const nb::gil_scoped_acquire held;
            release();
        },
        device);
    // The source has made this stream wait: another one has to wait for it.
    if (!device.is_cpu()) storage->set_stream(cuda::current_stream(device.index));
    return T(new Tensor(storage, layout, dtype));
}

/// The stream of this thread that the source's elements are to be ready for; none where it is on the CPU.
nb::object stream_for(nb::handle source) {
    if (!PyObject_HasAttrString(source.ptr(), "__dlpack_device__")) return nb::none();
    const auto [type, index] = checked_cast<std::pair<int, int>>(source.attr("__dlpack_device__")(),
                                                                 "[from_dlpack] __dlpack_device__ returned",
                                                                 "a tuple (device type, device number)");
    if (type != on_cuda) return nb::none();
    return nb::int_(reinterpret_cast<uintptr_t>(cuda::current_stream(index)));
}

nb::object ask_for_capsule(nb::handle source, std::optional<bool> copy_wanted) {
    const nb::object method = source.attr("__dlpack__");
    nb::dict options;
    const nb::object stream = stream_for(source);
    if (!stream.is_none()) options["stream"] = stream;
    nb::dict newer = nb::borrow<nb::dict>(nb::steal(PyDict_Copy(options.ptr())));
    newer["max_version"] = nb::make_tuple(1, 1);
    if (copy_wanted) newer["copy"] = *copy_wanted;
    try {
        return method(**newer);
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
    }
    return method(**options);  // a library from before DLPack 1
}

}  // namespace

T from_dlpack(nb::handle source, std::optional<bool> copy_wanted) {
    if (!PyObject_HasAttrString(source.ptr(), "__dlpack__"))
        fail(Kind::type, "[from_dlpack] ", printed(source.type()),
             " has no __dlpack__; asarray() takes more kinds of objects");
    const nb::object capsule = ask_for_capsule(source, copy_wanted);
    T result;
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
        auto* const managed =
            static_cast<ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
        require(managed->major <= 1, "[from_dlpack] DLPack ", managed->major,
                " is not known here; 1 is the newest");
        result = import(managed, !(managed->flags & read_only));
        PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
        if (copy_wanted.value_or(false) && !(managed->flags & copied)) result = copy(result);
    } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
        result = import(static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor")), true);
        PyCapsule_SetName(capsule.ptr(), "used_dltensor");
        if (copy_wanted.value_or(false)) result = copy(result);
    } else {
        fail(Kind::type, "[from_dlpack] __dlpack__ returned no DLPack capsule");
    }
    return result;
}

// --- the buffer protocol ---------------------------------------------------------------------------------

namespace {

constexpr const char* formats[n_dtypes] = {"?", "B", "H",     "I", "Q", "b",  "h", "i",
                                           "q", "e", nullptr, "f", "d", "Zf", "Zd"};

std::optional<DType> dtype_of_format(const char* format, int64_t size) {
    std::string_view text = format ? format : "B";
    if (!text.empty() && (text[0] == '@' || text[0] == '=' || text[0] == '<')) text.remove_prefix(1);
    if (text == "l") text = size == 8 ? "q" : "i";
    if (text == "L") text = size == 8 ? "Q" : "I";
    for (int i = 0; i < n_dtypes; ++i)
        if (formats[i] && text == formats[i] && size_of(DType(i)) == size) return DType(i);
    return std::nullopt;
}

struct LentBuffer {
    Ref<Storage> storage;
    Dims shape, strides;
};

bool has_flags(int flags, int wanted) { return (flags & wanted) == wanted; }

/// Strides in elements of a contiguous tensor whose first axis varies fastest.
Dims column_major_strides(const Dims& shape) {
    Dims strides = Dims::filled(shape.size(), 1);
    for (int i = 1; i < shape.size(); ++i) strides[i] = strides[i - 1] * shape[i - 1];
    return strides;
}

bool is_column_major(const Tensor& tensor) {
    const Dims strides = column_major_strides(tensor.shape());
    bool contiguous = true;
    for (int i = 0; i < tensor.dims(); ++i)
        contiguous = contiguous && (tensor.shape()[i] == 1 || tensor.strides()[i] == strides[i]);
    return contiguous || tensor.size() == 0;
}

/// Reason why a buffer with these flags cannot be lent, or null.
const char* buffer_problem(const Tensor& tensor, int flags) {
    if (!tensor.device().is_cpu())
        return "the tensor's memory is on a CUDA device; copy it with .to('cpu'), or use DLPack";
    if (!formats[int(tensor.dtype())]) return "bfloat16 has no format in the buffer protocol; use DLPack";
    if (tensor.tracked() && grad_enabled())
        return "the tensor requires gradients, which another library would not see; use .detach()";
    if (has_flags(flags, PyBUF_WRITABLE) && !tensor.storage()->writable())
        return "the tensor's memory is read-only; copy the tensor";
    const bool by_rows = tensor.contiguous(), by_columns = is_column_major(tensor);
    if (has_flags(flags, PyBUF_C_CONTIGUOUS) && !by_rows)
        return "the tensor is not C-contiguous; copy it, or request strides";
    if (has_flags(flags, PyBUF_F_CONTIGUOUS) && !by_columns)
        return "the tensor is not Fortran-contiguous; copy it, or request strides";
    if (has_flags(flags, PyBUF_ANY_CONTIGUOUS) && !by_rows && !by_columns)
        return "the tensor is not contiguous; copy it, or request strides";
    if (!has_flags(flags, PyBUF_STRIDES) && !by_rows)
        return "the tensor is not C-contiguous and no strides were requested; copy it";
    return nullptr;
}

/// Strides in bytes. Those of axes with one element are as in a contiguous array, as consumers expect.
Dims byte_strides(const Tensor& tensor, int flags) {
    const bool by_columns =
        is_column_major(tensor) && (!tensor.contiguous() || has_flags(flags, PyBUF_F_CONTIGUOUS));
    Dims strides = by_columns            ? column_major_strides(tensor.shape())
                   : tensor.contiguous() ? strides_of(tensor.shape())
                                         : tensor.strides();
    for (int64_t& stride : strides) stride *= size_of(tensor.dtype());
    return strides;
}

/// Fill in a view of a tensor that these flags allow; the view owns the memory from the end on.
void fill_view(const Tensor& tensor, Py_buffer* view, int flags) {
    tensor.bytes();  // contents may be elsewhere
    auto lent = std::make_unique<LentBuffer>(
        LentBuffer{tensor.storage(), tensor.shape(), byte_strides(tensor, flags)});
    lend(tensor);
    view->buf = tensor.bytes();
    view->len = tensor.size() * size_of(tensor.dtype());
    view->readonly = !tensor.storage()->writable();
    view->itemsize = size_of(tensor.dtype());
    view->format = has_flags(flags, PyBUF_FORMAT) ? const_cast<char*>(formats[int(tensor.dtype())]) : nullptr;
    view->ndim = has_flags(flags, PyBUF_ND) ? tensor.dims() : 0;
    view->shape = has_flags(flags, PyBUF_ND) ? reinterpret_cast<Py_ssize_t*>(lent->shape.begin()) : nullptr;
    view->strides =
        has_flags(flags, PyBUF_STRIDES) ? reinterpret_cast<Py_ssize_t*>(lent->strides.begin()) : nullptr;
    view->suboffsets = nullptr;
    view->internal = lent.release();
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
    view->obj = nullptr;
    try {
        const Tensor& tensor = *nb::inst_ptr<Tensor>(self);
        if (const char* const problem = buffer_problem(tensor, flags)) {
            PyErr_SetString(PyExc_BufferError, problem);
            return -1;
        }
        fill_view(tensor, view, flags);
    } catch (...) {
        set_python_error();
        return -1;
    }
    view->obj = Py_NewRef(self);
    return 0;
}

void release_buffer(PyObject*, Py_buffer* view) noexcept { delete static_cast<LentBuffer*>(view->internal); }

}  // namespace

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

T from_buffer(nb::handle source) {
    auto* const view = new Py_buffer;
    const int refused = PyObject_GetBuffer(source.ptr(), view, PyBUF_RECORDS_RO);
    if (refused) {
        delete view;
        throw nb::python_error();
    }
    const std::function<void()> release = [view] {
        const nb::gil_scoped_acquire held;
        PyBuffer_Release(view);
        delete view;
    };
    const Ref<Storage> storage = Storage::borrow(view->buf, view->len, !view->readonly, release);
    const auto dtype = dtype_of_format(view->format, view->itemsize);
    if (!dtype)
        fail(Kind::dtype, "[tensora] elements of format '", view->format ? view->format : "",
             "' have no type here");
    Layout layout;
    bool divides = true;
    for (int i = 0; i < view->ndim; ++i) {
        layout.shape.push_back(view->shape[i]);
        layout.strides.push_back(view->strides[i] / view->itemsize);
        divides = divides && view->strides[i] % view->itemsize == 0;
    }
    require_shape(divides,
                  "[tensora] strides of the buffer are no multiples of its elements' size; copy it before");
    return T(new Tensor(storage, layout, *dtype));
}

}  // namespace accelera::tensora
