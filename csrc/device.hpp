// What the CUDA runtime says of this machine.
#pragma once

#include <cstddef>

namespace paropt {

// Number of CUDA devices; 0 without a device or driver. Throws std::runtime_error on other faults.
int device_count();

// Set out[0..n) = value on the device, in order on `stream` (a cudaStream_t). `out` is device
// memory of the caller; returns before the kernel has run.
void fill(float* out, std::size_t n, float value, void* stream);

}  // namespace paropt
