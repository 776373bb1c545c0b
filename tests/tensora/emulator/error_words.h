// Names and descriptions of the errors of the emulated driver.
#pragma once

#include <map>

#include "queues.h"

namespace emulated {

struct Words {
    const char *name, *words;
};

inline const Words& words_of(int result) {
    static const std::map<int, Words> all = {
        {invalid_value, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
        {out_of_memory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
        {not_initialized, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
        {invalid_image, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
        {invalid_context, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
        {invalid_handle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
        {not_found, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
        {not_ready, {"CUDA_ERROR_NOT_READY", "device not ready"}},
        {illegal_address, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
        {too_many_resources,
         {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
        {misaligned_address, {"CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"}},
        {launch_failed, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
        {capture_unsupported,
         {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
        {capture_invalidated, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "a capture was invalidated"}}};
    static const Words unknown = {"CUDA_ERROR_UNKNOWN", "unknown error"};
    const auto place = all.find(result);
    return place == all.end() ? unknown : place->second;
}

}  // namespace emulated
