#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tensora/core/arena.h"
#include "tensora/core/io_thread.h"

namespace accelera::tensora {

/// Contents of blocks that had to leave an arena, in a file without a name. Several can be on their way at
/// once; all calls come from one thread at a time.
class SpillFile {
  public:
    explicit SpillFile(std::string folder) : folder_(std::move(folder)) {}
    ~SpillFile();
    SpillFile(const SpillFile&) = delete;

    /// Where in the file the bytes are now. Throws Error(memory) when the disk is full.
    int64_t write(const char* data, int64_t nbytes);
    /// Bring them back, and forget them.
    void read(int64_t slot, char* data, int64_t nbytes);
    void forget(int64_t slot) { ranges_.give(slot); }

    // The same in the background: memory is left alone until `finish`, which throws what `write` and `read`
    // do. The slot of a write that failed is no more; that of a read that failed still has the contents.
    int64_t begin_write(const char* data, int64_t nbytes);
    void begin_read(int64_t slot, char* data, int64_t nbytes);
    void finish(int64_t slot);
    /// Stop what is on its way, and forget the slot.
    void abandon(int64_t slot);

    int64_t written_bytes() const { return written_; }
    int64_t read_bytes() const { return read_; }
    int64_t held_bytes() const { return ranges_.used_bytes(); }

  private:
    void open();
    FileJob& prepare(int64_t slot, char* data, int64_t nbytes, bool writes);
    /// After a job: its slot, or its error.
    void conclude(int64_t slot);

    std::string folder_;
    int file_ = -1;
    pid_t process_ = 0;  ///< whose file it is
    int64_t written_ = 0, read_ = 0;
    AddressRanges ranges_{int64_t(1) << 50};
    std::map<int64_t, FileJob> jobs_;  ///< on their way, by slot
    IoThread thread_;
};

}  // namespace accelera::tensora
