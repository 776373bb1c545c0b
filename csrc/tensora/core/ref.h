#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace accelera::tensora {

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

}  // namespace accelera::tensora
