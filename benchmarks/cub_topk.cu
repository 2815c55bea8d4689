// cub::DeviceTopK behind a function that Python can call; built by bench_cuda.py with the headers
// of PyPI's cuda-cccl.

#include <cstdint>
#include <cub/device/device_topk.cuh>
#include <cuda/iterator>

// With temp = null only *temp_bytes is set. The keys are magnitudes.
extern "C" int cub_topk(void* temp, std::size_t* temp_bytes, const float* keys, float* keys_out,
                        std::uint32_t* indices_out, std::uint32_t n, std::uint32_t k) {
  const auto requirements = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                     cuda::execution::output_ordering::unsorted);
  return cub::DeviceTopK::MaxPairs(temp, *temp_bytes, keys, keys_out,
                                   cuda::counting_iterator<std::uint32_t>(0), indices_out, n, k,
                                   requirements);
}
