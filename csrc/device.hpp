// Devices and their memory. A stream is a cudaStream_t; where a pointer may be to the host or to a
// device, the runtime can tell. All throw std::runtime_error for what the runtime reports.
#pragma once

#include <cstddef>
#include <string>

namespace paropt {

// Number of CUDA devices; 0 without a device or driver.
int device_count();
// Why there is none, in the runtime's words; empty where there is one.
std::string why_no_device();

struct DeviceInfo {
  std::string name;
  int major, minor;   // compute capability
  std::size_t bytes;  // of its memory
  std::string uuid;   // 32 hexadecimal digits, which no other device has
};
DeviceInfo device_info(int device);

int current_device();
void set_device(int device);
// The device that some memory is on; throws std::invalid_argument for memory of the host.
int device_of(const void* memory);

void* allocate(std::size_t bytes);
void deallocate(void* memory);

// Memory of the host that the devices read and write by themselves.
void* allocate_pinned(std::size_t bytes);
void deallocate_pinned(void* memory);

// A stream that waits for no other one.
void* create_stream(int device);
void destroy_stream(void* stream);
void synchronize(void* stream);

// Copy between host and device, in order on the stream, and wait for it.
void copy(void* to, const void* from, std::size_t bytes, void* stream);

// Copy from anywhere to anywhere, in order on the stream, and return at once. Memory of the host
// must be pinned.
void begin_copy(void* to, const void* from, std::size_t bytes, void* stream);

// Copy and fill on a device, in order on the stream; they return at once.
void copy_on_device(void* to, const void* from, std::size_t bytes, void* stream);
void fill(void* to, int byte, std::size_t bytes, void* stream);

}  // namespace paropt
