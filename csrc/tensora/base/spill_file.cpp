#include "tensora/base/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tensora/base/base.h"

namespace accelera::tensora {

SpillFile::~SpillFile() {
    for (auto& [slot, job] : jobs_) thread_.cancel(job);
    if (file_ >= 0) close(file_);
}

/// A forked child leaves its parent's file alone.
void SpillFile::open() {
    const pid_t here = getpid();
    if (file_ >= 0 && process_ == here) return;
    if (file_ >= 0 && ranges_.used_bytes() > 0)
        fail(Kind::runtime, "[budget] ", ranges_.used_bytes(),
             " bytes of this step are in the file of process ", process_,
             ", of which this one is a fork; go on there, or make a budget here");
    if (file_ >= 0) close(file_);
    process_ = here;
    std::string name = folder_ + "/accelera-spill-XXXXXX";
    file_ = mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0)
        fail(Kind::memory, "[budget] no file for tensors that leave memory in ", folder_, " (",
             describe_errno(errno), "); give another spill_dir");
    unlink(name.c_str());
}

FileJob& SpillFile::prepare(int64_t slot, char* data, int64_t nbytes, bool writes) {
    FileJob& job = jobs_[slot];
    job.file = file_;
    job.offset = slot;
    job.data = data;
    job.nbytes = nbytes;
    job.writes = writes;
    return job;
}

void SpillFile::conclude(int64_t slot) {
    const auto node = jobs_.extract(slot);
    const FileJob& job = node.mapped();
    if (job.error == 0) {
        if (job.writes)
            written_ += job.nbytes;
        else
            forget(slot);
        return;
    }
    if (!job.writes)
        fail(Kind::store, "[budget] a spilled tensor cannot be read back from ", folder_, ": ",
             describe_errno(job.error), "; its contents are still there: try again, or check the disk");
    forget(slot);
    fail(Kind::memory, "[budget] ", job.nbytes, " bytes cannot be written to ", folder_, " (",
         describe_errno(job.error), "); give a spill_dir with more room");
}

int64_t SpillFile::write(const char* data, int64_t nbytes) {
    open();
    const int64_t slot = ranges_.take(nbytes);
    prepare(slot, const_cast<char*>(data), nbytes, true).carry_out();
    conclude(slot);
    return slot;
}

void SpillFile::read(int64_t slot, char* data, int64_t nbytes) {
    prepare(slot, data, nbytes, false).carry_out();
    conclude(slot);
}

int64_t SpillFile::begin_write(const char* data, int64_t nbytes) {
    open();
    const int64_t slot = ranges_.take(nbytes);
    thread_.begin(prepare(slot, const_cast<char*>(data), nbytes, true));
    return slot;
}

void SpillFile::begin_read(int64_t slot, char* data, int64_t nbytes) {
    thread_.begin(prepare(slot, data, nbytes, false));
}

void SpillFile::finish(int64_t slot) {
    FileJob& job = jobs_.at(slot);
    if (job.writes) open();
    thread_.wait(job);
    conclude(slot);
}

void SpillFile::abandon(int64_t slot) {
    thread_.cancel(jobs_.at(slot));
    jobs_.erase(slot);
    forget(slot);
}

}  // namespace accelera::tensora
