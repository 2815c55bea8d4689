// topk.hpp for arrays on the GPU: the same results, bit for bit.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace paropt::cuda {

// Bytes of workspace for topk, and its alignment in bytes.
template <class T, class I>
std::size_t topk_workspace(std::size_t n, std::size_t k);
constexpr std::size_t kWorkspaceAlignment = 256;

// paropt::topk without its hint, in order on `stream`: returns at once. All arrays and the
// workspace are on the device. The usual case reads the vector once.
template <class T, class I>
void topk(const T* gradient, T* residual, std::size_t n, std::size_t k, I* indices, T* values,
          void* workspace, cudaStream_t stream);

// How many entries of acc were infinite or NaN: what the last topk with this workspace found. Waits
// for it.
std::size_t topk_nonfinite(const void* workspace, cudaStream_t stream);

// paropt::reach_count, whose result `reach_found` waits for, and paropt::reach_take for the k
// entries that it found. The workspace is that of topk for n and 0.
template <class T, class I>
void reach_count(const T* gradient, T* residual, std::size_t n, std::uint64_t bound,
                 void* workspace, cudaStream_t stream);
std::size_t reach_found(const void* workspace, cudaStream_t stream);
template <class T, class I>
void reach_take(const T* acc, T* clear, std::size_t n, std::uint64_t bound, std::size_t k,
                I* indices, T* values, void* workspace, cudaStream_t stream);

}  // namespace paropt::cuda
