// Sums of dense and of sparse vectors. What an index may be is checked by a kernel of its own;
// those that write then look at what it found, so that the host need not wait in between.

#include "cuda_common.cuh"
#include "reduce.cuh"

namespace paropt::cuda {
namespace {

constexpr unsigned kVectors = 4;  // loads of a thread in flight
constexpr Count kNone = ~Count{0};

// ---- kernels -----------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads) add_kernel(T* out, const T* in, std::size_t n) {
  constexpr unsigned kEach = Vector<T>::kCount;
  const bool aligned = vectors_fit(out) && vectors_fit(in);
  const std::size_t stride = grid_threads() * kEach;
  for (std::size_t start = grid_thread() * kEach; start < n; start += kVectors * stride) {
    Vector<T> sums[kVectors], addends[kVectors];
#pragma unroll
    for (unsigned v = 0; v < kVectors; ++v) {
      sums[v] = load_vector(out, start + v * stride, n, aligned);
      addends[v] = load_vector(in, start + v * stride, n, aligned);
    }
#pragma unroll
    for (unsigned v = 0; v < kVectors; ++v) {
      for (unsigned i = 0; i < kEach; ++i) sums[v].at[i] += addends[v].at[i];
      store_vector(out, start + v * stride, n, aligned, sums[v]);
    }
  }
}

// Leave in *bad the first place where the indices do not ascend or stay below n.
template <class I>
__global__ void __launch_bounds__(kThreads)
    check_kernel(const I* indices, std::size_t k, std::size_t n, Count* bad) {
  for (std::size_t i = grid_thread(); i < k; i += grid_threads()) {
    const bool rises = i == 0 || indices[i - 1] < indices[i];
    if (!rises || indices[i] >= n) atomicMin(bad, Count{i});
  }
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(T* dense, const I* indices, const T* values, std::size_t k, T scale,
                   const Count* bad) {
  if (*bad != kNone) return;
  for (std::size_t i = grid_thread(); i < k; i += grid_threads()) {
    dense[indices[i]] += scale * values[i];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) zero_kernel(T* dense, std::size_t n, const Count* bad) {
  constexpr unsigned kEach = Vector<T>::kCount;
  if (*bad != kNone) return;
  const bool aligned = vectors_fit(dense);
  for (std::size_t i = grid_thread() * kEach; i < n; i += grid_threads() * kEach) {
    store_vector(dense, i, n, aligned, Vector<T>{});
  }
}

// ---- launchers ---------------------------------------------------------------------------------

template <class T, class I>
void check(const Sparse<T, I>& vector, std::size_t n, Count* bad, cudaStream_t stream) {
  if (vector.k == 0) return;
  const unsigned grid = grid_for(ceil_div(vector.k, kThreads));
  launch(check_kernel<I>, grid, stream, vector.indices, vector.k, n, bad);
}

template <class T, class I>
void scatter(T* dense, const Sparse<T, I>& vector, T scale, const Count* bad, cudaStream_t stream) {
  if (vector.k == 0) return;
  const unsigned grid = grid_for(ceil_div(vector.k, kThreads));
  launch(scatter_kernel<T, I>, grid, stream, dense, vector.indices, vector.values, vector.k, scale,
         bad);
}

Count* no_fault(void* workspace, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(workspace, 0xff, kScatterWorkspace, stream));
  return static_cast<Count*>(workspace);
}

}  // namespace

template <class T>
void add(T* out, const T* in, std::size_t n, cudaStream_t stream) {
  if (n == 0) return;
  const std::size_t each = std::size_t{kThreads} * kVectors * Vector<T>::kCount;
  launch(add_kernel<T>, grid_for(ceil_div(n, each)), stream, out, in, n);
}

template <class T, class I>
void scatter_add(T* dense, std::size_t n, const I* indices, const T* values, std::size_t k, T scale,
                 void* workspace, cudaStream_t stream) {
  const Sparse<T, I> vector = {indices, values, k};
  Count* bad = no_fault(workspace, stream);
  check(vector, n, bad, stream);
  scatter(dense, vector, scale, bad, stream);
}

template <class T, class I>
void scatter_sum(T* dense, std::size_t n, const Sparse<T, I>* vectors, std::size_t count, T scale,
                 void* workspace, cudaStream_t stream) {
  Count* bad = no_fault(workspace, stream);
  for (std::size_t v = 0; v < count; ++v) check(vectors[v], n, bad, stream);
  if (n == 0) return;
  const std::size_t each = std::size_t{kThreads} * Vector<T>::kCount;
  launch(zero_kernel<T>, grid_for(ceil_div(n, each)), stream, dense, n, bad);
  for (std::size_t v = 0; v < count; ++v) scatter(dense, vectors[v], scale, bad, stream);
}

void check_scatter(const void* workspace, cudaStream_t stream) {
  const Count bad = fetch(static_cast<const Count*>(workspace), stream);
  if (bad == kNone) return;
  throw std::invalid_argument(
      "indices must be strictly ascending and below the length of dense; on the GPU an index "
      "may not occur twice; entry " +
      std::to_string(bad) + " breaks the order");
}

#define PAROPT_CUDA_SCATTER(T, I)                                                        \
  template void scatter_add(T*, std::size_t, const I*, const T*, std::size_t, T, void*,  \
                            cudaStream_t);                                               \
  template void scatter_sum(T*, std::size_t, const Sparse<T, I>*, std::size_t, T, void*, \
                            cudaStream_t);
#define PAROPT_CUDA_REDUCE(T)                                 \
  template void add(T*, const T*, std::size_t, cudaStream_t); \
  PAROPT_CUDA_SCATTER(T, std::uint32_t)                       \
  PAROPT_CUDA_SCATTER(T, std::uint64_t)
PAROPT_CUDA_REDUCE(float)
PAROPT_CUDA_REDUCE(double)

}  // namespace paropt::cuda
