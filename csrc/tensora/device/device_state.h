#pragma once

#include <atomic>

#include "tensora/device/driver_functions.h"

/// Devices in use, for the files that call the driver.
namespace accelera::tensora::cuda {

/// A device in use: its primary context, which other libraries of the process share, and a memory pool.
struct DeviceState {
    DeviceNumber number = 0;
    Context context = nullptr;
    Pool pool = nullptr;
    Stream stream = nullptr;
    Stream capture_stream = nullptr;  ///< that graphs are captured on
    Properties properties;

    explicit DeviceState(int index);

  private:
    void read_properties();
    void make_pool(int index);
};

/// Raises where the device does not exist.
DeviceState& device_state(int device);

/// While it lives, a context is the thread's current one. The one before comes back, since other libraries
/// take their device from it.
class CurrentContext {
  public:
    explicit CurrentContext(Context context);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;

  private:
    Context before_ = nullptr;
    bool changed_ = false;
};

/// A device's context, as the current one.
class UsedDevice {
  public:
    explicit UsedDevice(int device) : state_(device_state(device)), context_(state_.context) {}
    DeviceState* operator->() const { return &state_; }

  private:
    DeviceState& state_;
    const CurrentContext context_;
};

/// The stream that the thread gave work to before it began to capture a graph.
Stream stream_before_capture();

}  // namespace accelera::tensora::cuda
