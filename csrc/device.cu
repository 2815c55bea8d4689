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

std::string device_name(int device) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return properties.name;
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

void synchronize(void* stream) {
  CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

void copy(void* to, const void* from, std::size_t bytes, void* stream) {
  CUDA_CHECK(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
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
