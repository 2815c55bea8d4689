// What the CUDA runtime says of this machine, and one trivial kernel that proves the build path.

#include <cuda_runtime.h>

#include "cuda_common.cuh"
#include "device.hpp"

namespace paropt {

// CUDA kernels

__global__ void fill_kernel(float* out, std::size_t n, float value) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;  // guard
  out[i] = value;
}

// kernel launchers

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  // No driver and no device are answers, not errors: the machine has 0 devices.
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return 0;
  CUDA_CHECK(status);
  return count;
}

void fill(float* out, std::size_t n, float value, void* stream) {
  if (n == 0) return;
  constexpr unsigned block = 256;
  const auto grid = static_cast<unsigned>((n + block - 1) / block);
  fill_kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(out, n, value);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace paropt
