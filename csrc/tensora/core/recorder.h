#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensora/core/memory.h"

namespace accelera::tensora {

/// Work of one operation: operations on numbers, and bytes read and written at least.
struct Cost {
    double flops = 0;
    double bytes = 0;
};

/// Columns of a trace (see accelera.trace): events, buffers and steps.
struct Record {
    std::vector<int32_t> event_buffer;
    std::vector<uint8_t> event_kind;  ///< accelera.trace.Kind
    std::vector<int32_t> event_step;
    std::vector<int64_t> buffer_nbytes;
    std::vector<Role> buffer_role;
    std::vector<std::string> buffer_name;
    std::vector<std::string> step_op;
    std::vector<double> step_flops;
    std::vector<double> step_seconds;
};

/// Begin to record what operations do with memory; raises when it is recorded already.
void begin_record();
/// The record, which ends.
Record end_record();
/// Whether a record is kept. Everything below does nothing otherwise.
bool is_recording();
/// Call a tensor's memory by this name in the record.
void name_in_record(Storage& storage, const std::string& name);

/// One operation: a step of the record. Memory allocated while it lives belongs to it, and is written by it.
class RecordedStep {
  public:
    explicit RecordedStep(const char* op);
    ~RecordedStep();
    RecordedStep(const RecordedStep&) = delete;
    void read(Storage& storage) const;
    void write(Storage& storage) const;
    void cost(const Cost& cost) { cost_ = cost; }

  private:
    bool active_;
    const char* op_;
    Cost cost_;
    double began_ = 0;
};

// Told by the allocator.
void record_birth(Storage& storage);
void record_role(Storage& storage);
void record_end(Storage& storage);

}  // namespace accelera::tensora
