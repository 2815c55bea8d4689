// reduce.hpp for arrays on the GPU: the same sums, bit for bit. T is float or double.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "reduce.hpp"

namespace paropt::cuda {

// out[i] += in[i] for i < n, in order on `stream`. The arrays do not overlap, or are the same.
template <class T>
void add(T* out, const T* in, std::size_t n, cudaStream_t stream);

// Bytes of workspace for the sums below; aligned to 8.
constexpr std::size_t kScatterWorkspace = 8;

// dense[indices[i]] += scale * values[i] for i < k, in order on `stream`. Unlike on the CPU the
// indices are strictly ascending, so that no two threads meet: if not, or if one is not below n,
// nothing is written and check_scatter says so.
template <class T, class I>
void scatter_add(T* dense, std::size_t n, const I* indices, const T* values, std::size_t k, T scale,
                 void* workspace, cudaStream_t stream);

// paropt::scatter_sum: the list of vectors is on the host, their entries are on the device.
template <class T, class I>
void scatter_sum(T* dense, std::size_t n, const Sparse<T, I>* vectors, std::size_t count, T scale,
                 void* workspace, cudaStream_t stream);

// Wait for the last sum with this workspace and throw std::invalid_argument if it refused.
void check_scatter(const void* workspace, cudaStream_t stream);

}  // namespace paropt::cuda
