// What the CUDA runtime says of this machine, and its memory.

#include "cuda_common.cuh"
#include "device.hpp"

namespace paropt {

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  // No driver and no device are answers, not errors: the machine has 0 devices.
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return 0;
  CUDA_CHECK(status);
  return count;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

DeviceInfo device_info(int device) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string uuid;
  for (const char byte : properties.uuid.bytes) {
    for (const int shift : {4, 0}) uuid += "0123456789abcdef"[byte >> shift & 15];
  }
  return {properties.name, properties.major, properties.minor, properties.totalGlobalMem, uuid};
}

int current_device() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

void set_device(int device) { CUDA_CHECK(cudaSetDevice(device)); }

int device_of(const void* memory) {
  cudaPointerAttributes attributes;
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, memory));
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    throw std::invalid_argument(
        "an array must be in memory of the GPU, got an address of the host");
  }
  return attributes.device;
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, bytes));
  return memory;
}

void deallocate(void* memory) { CUDA_CHECK(cudaFree(memory)); }

void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
  return memory;
}

void deallocate_pinned(void* memory) { CUDA_CHECK(cudaFreeHost(memory)); }

void* create_stream(int device) {
  const int before = current_device();
  cudaStream_t stream = nullptr;
  set_device(device);
  const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  set_device(before);
  CUDA_CHECK(status);
  return stream;
}

void destroy_stream(void* stream) {
  CUDA_CHECK(cudaStreamDestroy(static_cast<cudaStream_t>(stream)));
}

void synchronize(void* stream) {
  CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

void begin_copy(void* to, const void* from, std::size_t bytes, void* stream) {
  CUDA_CHECK(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

void copy(void* to, const void* from, std::size_t bytes, void* stream) {
  begin_copy(to, from, bytes, stream);
  synchronize(stream);
}

void copy_on_device(void* to, const void* from, std::size_t bytes, void* stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                             static_cast<cudaStream_t>(stream)));
}

void fill(void* to, int byte, std::size_t bytes, void* stream) {
  CUDA_CHECK(cudaMemsetAsync(to, byte, bytes, static_cast<cudaStream_t>(stream)));
}

}  // namespace paropt
