#pragma once

#include <optional>
#include <vector>

#include "tensora/jit/program.h"

namespace accelera::tensora {

/// Memory of a program on a CUDA device whose addresses stay from call to call, as graphs need it: its arena,
/// and a copy of each argument, result and gradient. What the callers see is copied to it before a part of
/// the program runs, and from it afterwards.
class FixedMemory {
  public:
    explicit FixedMemory(const CapturedProgram& program);

    /// All of it; the arena comes first.
    const Ref<Storage>& block() const { return block_; }
    /// The copy of a buffer; null where the program works on the buffer itself.
    char* copy_of(size_t buffer) const;
    /// A call begins: the copies hold nothing yet.
    void begin();
    /// Memory of a buffer that the callers see.
    void set_seen(size_t buffer, char* memory) { copies_[buffer].seen = memory; }
    /// Copies what was given, or written since the last part, of a buffer with this version.
    void copy_in(size_t buffer, uint32_t version);
    /// Copies what a part has written to the callers' memory.
    void copy_out(size_t buffer);
    /// Version of the callers' memory, where it holds what the copy does.
    void note_version(size_t buffer, uint32_t version);

  private:
    struct Copy {
        int64_t place = -1;  ///< in the block; -1: none
        char* seen = nullptr;
        std::optional<uint32_t> version;  ///< of the callers' memory when both held the same
    };
    const CapturedProgram& program_;
    std::vector<Copy> copies_;  ///< by buffer
    Ref<Storage> block_;
};

}  // namespace accelera::tensora
