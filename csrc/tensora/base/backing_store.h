#pragma once

#include <cstdint>

namespace accelera::tensora {

/// Place for contents of blocks that had to leave an arena. All calls come from one thread at a time.
class BackingStore {
  public:
    virtual ~BackingStore() = default;

    /// Begin to store bytes, which are left alone until `finish` or `abandon`; the slot that they are in
    /// then. Throws Error(memory) where there is no room, as `finish` may; the slot is no more, then.
    virtual int64_t begin_write(const char* data, int64_t nbytes) = 0;
    /// Begin to bring them back. When that fails `finish` throws, and the slot still has the contents.
    virtual void begin_read(int64_t slot, char* data, int64_t nbytes) = 0;
    /// What this thread does next finds what was begun done. A slot that was read is no more.
    virtual void finish(int64_t slot) = 0;
    /// Stop what is on its way, and forget the slot.
    virtual void abandon(int64_t slot) = 0;
    virtual void forget(int64_t slot) = 0;

    // The same, finished.
    virtual int64_t write(const char* data, int64_t nbytes) {
        const int64_t slot = begin_write(data, nbytes);
        finish(slot);
        return slot;
    }
    virtual void read(int64_t slot, char* data, int64_t nbytes) {
        begin_read(slot, data, nbytes);
        finish(slot);
    }

    /// A step has ended: memory that it did not use may be released.
    virtual void release_unused() {}

    int64_t written_bytes() const { return written_; }

  protected:
    int64_t written_ = 0;
};

}  // namespace accelera::tensora
