#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tensora/base/arena.h"
#include "tensora/base/backing_store.h"
#include "tensora/base/io_thread.h"

namespace accelera::tensora {

/// Backing store in a file without a name. A thread of its own carries out what was begun.
class SpillFile final : public BackingStore {
  public:
    explicit SpillFile(std::string folder) : folder_(std::move(folder)) {}
    ~SpillFile() override;
    SpillFile(const SpillFile&) = delete;

    int64_t begin_write(const char* data, int64_t nbytes) override;
    void begin_read(int64_t slot, char* data, int64_t nbytes) override;
    void finish(int64_t slot) override;
    void abandon(int64_t slot) override;
    void forget(int64_t slot) override { ranges_.give(slot); }
    int64_t write(const char* data, int64_t nbytes) override;
    void read(int64_t slot, char* data, int64_t nbytes) override;

  private:
    void open();
    FileJob& prepare(int64_t slot, char* data, int64_t nbytes, bool writes);
    /// After a job: its slot, or its error.
    void conclude(int64_t slot);

    std::string folder_;
    int file_ = -1;
    pid_t process_ = 0;  ///< whose file it is
    AddressRanges ranges_{int64_t(1) << 50};
    std::map<int64_t, FileJob> jobs_;  ///< on their way, by slot
    IoThread thread_;
};

}  // namespace accelera::tensora
