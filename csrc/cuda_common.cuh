// Error handling shared by the CUDA sources.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#define CUDA_CHECK(expression) ::paropt::cuda_check((expression), #expression, __FILE__, __LINE__)

namespace paropt {

inline void cuda_check(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + expression +
                           ": " + cudaGetErrorString(status));
}

}  // namespace paropt
