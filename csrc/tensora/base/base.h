#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

/// What everything here is built on: errors, counted references, short lists of integers.
namespace accelera::tensora {

// --- errors

/// The class of `accelera.errors` that an Error becomes in Python.
enum class Kind {
    value,
    type,
    shape,
    dtype,
    index,
    runtime,
    not_implemented,
    memory,
    device_memory,
    device,
    store
};

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

template <typename... Parts>
void require_shape(bool holds, const Parts&... parts) {
    if (!holds) [[unlikely]]
        fail(Kind::shape, parts...);
}

/// Description of an errno; `strerror` would share its buffer between threads.
inline std::string describe_errno(int code) { return std::generic_category().message(code); }

// --- counted references

/// Base of what Refs share and Python never sees.
class Counted {
  public:
    Counted() = default;
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    virtual ~Counted() = default;

    void inc_ref() const noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
    bool dec_ref() const noexcept { return count_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
    uint32_t ref_count() const noexcept { return count_.load(std::memory_order_relaxed); }

  private:
    mutable std::atomic<uint32_t> count_{0};
};

/// Pointer that keeps its object alive. `T` counts its references: a Counted, or a class that Python sees.
template <typename T>
class Ref {
  public:
    Ref() = default;
    Ref(std::nullptr_t) {}
    Ref(T* object) : object_(object) { inc(); }
    Ref(const Ref& other) : object_(other.object_) { inc(); }
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    ~Ref() { dec(); }
    // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): the copy keeps the object
    Ref& operator=(const Ref& other) {
        Ref copy(other);
        std::swap(object_, copy.object_);
        return *this;
    }
    Ref& operator=(Ref&& other) noexcept {
        std::swap(object_, other.object_);
        other.reset();
        return *this;
    }

    void reset() {
        dec();
        object_ = nullptr;
    }
    T* get() const { return object_; }
    T* operator->() const { return object_; }
    T& operator*() const { return *object_; }
    explicit operator bool() const { return object_ != nullptr; }
    friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }

  private:
    void inc() const {
        if (object_) object_->inc_ref();
    }
    void dec() const {
        if (object_ && object_->dec_ref()) delete object_;
    }
    T* object_ = nullptr;
};

// --- shapes, strides, axes

/// A short list of integers kept in place: a shape, strides, axes. At most `most` of them.
class Dims {
  public:
    static constexpr int most = 32;

    Dims() {}  // not defaulted: that would clear the room of most of them
    Dims(std::initializer_list<int64_t> values) : Dims(values.begin(), int64_t(values.size())) {}
    Dims(const int64_t* values, int64_t n) {
        resize(n);
        std::copy_n(values, n, values_);
    }
    static Dims filled(int64_t n, int64_t value) {
        Dims dims;
        dims.resize(n);
        std::fill_n(dims.values_, n, value);
        return dims;
    }
    // Only what is used is copied: the rest of the room is most of it.
    Dims(const Dims& other) : n_(other.n_) { std::copy_n(other.values_, n_, values_); }
    // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): copying values to themselves changes nothing
    Dims& operator=(const Dims& other) {
        n_ = other.n_;
        std::copy_n(other.values_, n_, values_);
        return *this;
    }

    int size() const { return n_; }
    bool empty() const { return n_ == 0; }
    int64_t operator[](int i) const { return values_[i]; }
    int64_t& operator[](int i) { return values_[i]; }
    int64_t back() const { return values_[n_ - 1]; }
    int64_t& back() { return values_[n_ - 1]; }
    const int64_t* begin() const { return values_; }
    const int64_t* end() const { return values_ + n_; }
    int64_t* begin() { return values_; }
    int64_t* end() { return values_ + n_; }

    void push_back(int64_t value) {
        resize(n_ + 1);
        values_[n_ - 1] = value;
    }
    void insert(int at, int64_t value) {
        resize(n_ + 1);
        std::copy_backward(values_ + at, values_ + n_ - 1, values_ + n_);
        values_[at] = value;
    }
    void erase(int at) {
        std::copy(values_ + at + 1, values_ + n_, values_ + at);
        --n_;
    }
    /// New places hold anything.
    void resize(int64_t n) {
        if (n > most) [[unlikely]]
            fail(Kind::value, n, " dimensions; a tensor has at most ", most);
        n_ = int(n);
    }
    /// 0 with an extent of 0, else an error.
    int64_t require_countable() const {
        if (contains(0)) return 0;
        fail(Kind::value, "tensora: a tensor of shape ", words(), " has more bytes than 64 bits can number");
    }
    bool contains(int64_t value) const { return std::find(begin(), end(), value) != end(); }
    /// Elements of a tensor with these extents. Throws Error(value) where their bytes have no number of 64
    /// bits.
    int64_t product() const {
        int64_t result = 1;
        bool overflows = false;
        for (int64_t value : *this) overflows |= __builtin_mul_overflow(result, value, &result);
        if (overflows || result > most_elements) [[unlikely]]
            return require_countable();
        return result;
    }
    static constexpr int64_t most_elements = INT64_MAX / 16;  // of the widest type
    friend bool operator==(const Dims& a, const Dims& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end());
    }

    /// As Python writes a tuple.
    std::string words() const {
        std::string result = "(";
        for (int i = 0; i < n_; ++i)
            result += std::to_string(values_[i]) + (i + 1 < n_ ? ", " : n_ == 1 ? "," : "");
        return result + ")";
    }

  private:
    int n_ = 0;
    int64_t values_[most];
};

/// In a message; put together only when there is one.
inline std::ostream& operator<<(std::ostream& stream, const Dims& dims) { return stream << dims.words(); }

/// Strides, in elements, of a new tensor of this shape: the last axis varies fastest.
inline Dims strides_of(const Dims& shape) {
    Dims strides;
    strides.resize(shape.size());
    int64_t step = 1;
    for (int i = shape.size() - 1; i >= 0; --i) {
        strides[i] = step;
        step *= std::max<int64_t>(shape[i], 1);
    }
    return strides;
}

/// Axis counted from the front; negative ones count from the end, as in Python.
inline int axis_of(int64_t axis, int n_dims, const char* op) {
    if (axis < -n_dims || axis >= n_dims)
        fail(Kind::index, op, ": axis ", axis, " of a tensor with ", n_dims, " dimensions; give one from ",
             -n_dims, " to ", n_dims - 1);
    return int(axis < 0 ? axis + n_dims : axis);
}

/// All of them counted from the front; no axis twice. Of a 0-d tensor 0 and -1 are none, as in PyTorch.
inline Dims axes_of(const Dims& axes, int n_dims, const char* op) {
    Dims result;
    if (n_dims == 0 && axes.size() == 1 && (axes[0] == 0 || axes[0] == -1)) return result;
    for (int64_t axis : axes) {
        const int64_t index = axis_of(axis, n_dims, op);
        require(!result.contains(index), op, ": axis ", axis, " stands twice in ", axes);
        result.push_back(index);
    }
    return result;
}

/// Shape that both have after broadcasting.
Dims broadcast(const Dims& a, const Dims& b, const char* op);

}  // namespace accelera::tensora
