#include "tensora/jit/fixed_memory.h"

#include <algorithm>

#include "tensora/device/driver.h"

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;

namespace {

constexpr int64_t alignment = 256;

std::vector<char> used_buffers(const CapturedProgram& program) {
    std::vector<char> used(program.buffers.size());
    for (const CapturedStep& step : program.steps)
        for (const auto* operands : {&step.inputs, &step.outputs})
            for (const CapturedOperand& operand : *operands) used[size_t(operand.buffer)] = 1;
    return used;
}

/// Whether each call has other memory for it.
bool moves(const CapturedBuffer& buffer) {
    return !buffer.device.is_cpu() && (buffer.kind == Memory::argument || buffer.kind == Memory::gradient ||
                                       (buffer.kind == Memory::computed && buffer.kept));
}

}  // namespace

FixedMemory::FixedMemory(const CapturedProgram& program)
    : program_(program), copies_(program.buffers.size()) {
    const std::vector<char> used = used_buffers(program);
    int64_t end = program.device_arena.nbytes;
    for (size_t i = 0; i < copies_.size(); ++i) {
        if (!used[i] || !moves(program.buffers[i])) continue;
        copies_[i].place = (end + alignment - 1) / alignment * alignment;
        end = copies_[i].place + program.buffers[i].nbytes;
    }
    const DeviceScope scope(program.device);
    const RoleScope role(Role::activation);
    block_ = Storage::allocate(std::max<int64_t>(end, 1));
}

char* FixedMemory::copy_of(size_t buffer) const {
    const int64_t place = copies_[buffer].place;
    return place < 0 ? nullptr : block_->device_data() + place;
}

void FixedMemory::begin() {
    for (Copy& copy : copies_) copy = {copy.place, nullptr, std::nullopt};
}

void FixedMemory::copy_in(size_t buffer, uint32_t version) {
    Copy& copy = copies_[buffer];
    const bool computed = program_.buffers[buffer].kind == Memory::computed;
    if (!copy.seen || copy.place < 0 || copy.version == version || (computed && !copy.version)) return;
    cuda::copy_within(program_.device.index, copy_of(buffer), copy.seen, program_.buffers[buffer].nbytes);
    copy.version = version;
}

void FixedMemory::copy_out(size_t buffer) {
    Copy& copy = copies_[buffer];
    if (copy.place < 0) return;
    copy.version = 0;
    cuda::copy_within(program_.device.index, copy.seen, copy_of(buffer), program_.buffers[buffer].nbytes);
}

void FixedMemory::note_version(size_t buffer, uint32_t version) {
    Copy& copy = copies_[buffer];
    if (copy.version) copy.version = version;
}

}  // namespace accelera::tensora
