#pragma once

#include <cstdint>
#include <utility>

#include "tensora/base/threads.h"

/// Events that operations report to the function capture of their thread: jit/ defines them, so that core
/// does not depend on it.
namespace accelera::tensora {

struct Call;
class Storage;

/// An operation has filled its outputs.
void capture_call(Capture& capture, const Call& call, int64_t workspace_bytes);
/// Memory was allocated whose contents no captured step has computed.
void capture_birth(Capture& capture, Storage& storage);

/// While it lives, operations of this thread are not captured.
class CapturePause {
  public:
    CapturePause() : before_(std::exchange(thread_state.capture, nullptr)) {}
    ~CapturePause() { thread_state.capture = before_; }
    CapturePause(const CapturePause&) = delete;

  private:
    Capture* before_;
};

}  // namespace accelera::tensora
