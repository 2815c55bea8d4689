// Shared by the CUDA sources: errors, launches, workspaces, and sums over warps and blocks.
//
// A launcher takes a stream and a workspace in device memory, allocates nothing, waits for nothing,
// and throws what the runtime reports. What only a kernel can find out, such as bytes that do not
// decode, it leaves in the workspace; a function that reads it waits for the stream and throws.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "common.hpp"

#define CUDA_CHECK(expression) ::paropt::cuda_check((expression), #expression, __FILE__, __LINE__)

// Threads of a block. Another power of two from 32 on may be tried on a GPU.
#ifndef PAROPT_CUDA_BLOCK
#define PAROPT_CUDA_BLOCK 256
#endif

namespace paropt {

constexpr unsigned kThreads = PAROPT_CUDA_BLOCK, kWarp = 32, kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffff;
constexpr unsigned kBlocksPerMultiprocessor = 2048 / kThreads;
constexpr std::size_t kVectorBytes = 16;  // what one instruction loads

inline void cuda_check(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + expression +
                           ": " + cudaGetErrorString(status));
}

// As many blocks as there are items, but no more than the device can hold at a time.
inline unsigned grid_for(std::size_t items) {
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const auto most = static_cast<std::size_t>(multiprocessors) * kBlocksPerMultiprocessor;
  return static_cast<unsigned>(std::max<std::size_t>(1, std::min(items, most)));
}

// Run a kernel with `grid` blocks of kThreads.
template <class... P, class... A>
void launch(void (*kernel)(P...), unsigned grid, cudaStream_t stream, A... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...));
}

// Copy one value from the device, once all before it on the stream is done.
template <class T>
T fetch(const T* from, cudaStream_t stream) {
  T value;
  CUDA_CHECK(cudaMemcpyAsync(&value, from, sizeof value, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return value;
}

// Cuts pieces off a workspace; with none it only measures.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(std::size_t count) {
    T* piece = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += ceil_div(count * sizeof(T), 256) * 256;
    return piece;
  }
  std::size_t used() const { return used_; }

 private:
  char* memory_;
  std::size_t used_ = 0;
};

// ---- in kernels --------------------------------------------------------------------------------

// The runtime's atomics know this integer of 64 bits.
using Count = unsigned long long;

__device__ __forceinline__ unsigned lane_number() { return threadIdx.x % kWarp; }
__device__ __forceinline__ unsigned warp_number() { return threadIdx.x / kWarp; }
__device__ __forceinline__ unsigned lanes_below() { return (1u << lane_number()) - 1; }
__device__ __forceinline__ std::size_t grid_thread() {
  return static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::size_t grid_threads() {
  return static_cast<std::size_t>(gridDim.x) * kThreads;
}

// The sum over this lane and those below.
template <class T>
__device__ __forceinline__ T warp_sum_up_to(T x) {
  for (unsigned by = 1; by < kWarp; by *= 2) {
    const T below = __shfl_up_sync(kAllLanes, x, by);
    if (lane_number() >= by) x += below;
  }
  return x;
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  for (unsigned by = kWarp / 2; by > 0; by /= 2) x += __shfl_xor_sync(kAllLanes, x, by);
  return x;
}

// The sum over the threads of the block below this one; `total` is that of all. Called by all
// threads; orders their memory as __syncthreads does.
template <class T>
__device__ T block_sum_below(T x, T& total) {
  __shared__ T sums[kWarps];
  const T up_to = warp_sum_up_to(x);
  if (lane_number() == kWarp - 1) sums[warp_number()] = up_to;
  __syncthreads();
  T before = 0;
  total = 0;
  for (unsigned warp = 0; warp < kWarps; ++warp) {
    if (warp < warp_number()) before += sums[warp];
    total += sums[warp];
  }
  __syncthreads();  // the sums may be written again
  return before + up_to - x;
}

template <class T>
__device__ T block_sum(T x) {
  T total;
  block_sum_below(x, total);
  return total;
}

// 16 bytes as elements of a type.
template <class T>
struct alignas(kVectorBytes) Vector {
  static constexpr unsigned kCount = kVectorBytes / sizeof(T);
  T at[kCount];
};

template <class T>
PAROPT_HOST_DEVICE inline bool vectors_fit(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0;
}

// Elements [first, first + kCount) of an array, as far as they are below `count`; the others are
// zero. One load where the whole vector is there and `aligned`.
template <class T>
__device__ __forceinline__ Vector<T> load_vector(const T* x, std::size_t first, std::size_t count,
                                                 bool aligned) {
  if (aligned && first + Vector<T>::kCount <= count) {
    const uint4 words = *reinterpret_cast<const uint4*>(x + first);
    Vector<T> vector;
    memcpy(&vector, &words, sizeof vector);
    return vector;
  }
  Vector<T> vector = {};
#pragma unroll
  for (unsigned i = 0; i < Vector<T>::kCount; ++i) {
    if (first + i < count) vector.at[i] = x[first + i];
  }
  return vector;
}

template <class T>
__device__ __forceinline__ void store_vector(T* x, std::size_t first, std::size_t count,
                                             bool aligned, const Vector<T>& vector) {
  if (aligned && first + Vector<T>::kCount <= count) {
    uint4 words;
    memcpy(&words, &vector, sizeof words);
    *reinterpret_cast<uint4*>(x + first) = words;
    return;
  }
#pragma unroll
  for (unsigned i = 0; i < Vector<T>::kCount; ++i) {
    if (first + i < count) x[first + i] = vector.at[i];
  }
}

}  // namespace paropt
