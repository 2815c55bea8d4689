// Runs every kernel under ThreadSanitizer by emulation, with several numbers of blocks; prints what
// went wrong. With an argument it runs a kernel that is broken in the way it names.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cuda_common.cuh"
#include "index_codec.cuh"
#include "message.cuh"
#include "quantize.cuh"
#include "reduce.cuh"
#include "topk.cuh"

namespace paropt {
namespace {

// ---- broken kernels ----------------------------------------------------------------------------

// Every thread reads what another wrote before the barrier that is not there.
__global__ void no_barrier_kernel(unsigned* out, bool barrier) {
  __shared__ unsigned shared[kThreads];
  shared[threadIdx.x] = threadIdx.x;
  if (barrier) __syncthreads();
  out[grid_thread()] = shared[(threadIdx.x + 1) % kThreads];
}

// A shuffle orders no memory.
__global__ void no_warp_barrier_kernel(unsigned* out, bool barrier) {
  __shared__ unsigned shared[kThreads];
  shared[threadIdx.x] = threadIdx.x;
  const unsigned zero = __shfl_sync(kAllLanes, 0u, 0);
  if (barrier) __syncwarp();
  out[grid_thread()] = shared[threadIdx.x ^ 1] + zero;
}

// Nothing orders two blocks.
__global__ void across_blocks_kernel(unsigned* out, bool apart) {
  out[apart ? grid_thread() : threadIdx.x] = 1;
}

// Half of a warp waits for the other half, which waits at a barrier for the first.
__global__ void divergent_kernel(unsigned* out, bool together) {
  if (together || lane_number() < kWarp / 2) {
    __syncthreads();
  } else {
    out[0] = __shfl_sync(kAllLanes, 0u, 0);
  }
}

template <class T>
T* allocate(std::size_t count) {
  T* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, count * sizeof(T)));
  return memory;
}

template <class T>
T* upload(const std::vector<T>& x) {
  T* memory = allocate<T>(x.size());
  CUDA_CHECK(cudaMemcpyAsync(memory, x.data(), x.size() * sizeof(T), cudaMemcpyDefault, nullptr));
  return memory;
}

int run_broken(const std::string& name, bool mended) {
  auto* out = allocate<unsigned>(2 * kThreads);
  const auto run = [&](auto* kernel) { launch(kernel, 2, nullptr, out, mended); };
  if (name == "no barrier") run(no_barrier_kernel);
  if (name == "no warp barrier") run(no_warp_barrier_kernel);
  if (name == "across blocks") run(across_blocks_kernel);
  if (name == "divergent") run(divergent_kernel);
  return 0;
}

// ---- the kernels that ship ---------------------------------------------------------------------

std::vector<float> normal(std::size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> distribution;
  std::vector<float> x(n);
  for (float& entry : x) entry = distribution(random);
  return x;
}

void run_topk(std::size_t n, std::size_t k) {
  float* gradient = upload(normal(n));
  float* residual = upload(std::vector<float>(n, 0));
  auto* indices = allocate<std::uint32_t>(k);
  float* values = allocate<float>(k);
  auto* workspace = allocate<char>(cuda::topk_workspace<float, std::uint32_t>(n, k));
  cuda::topk(gradient, residual, n, k, indices, values, workspace, nullptr);
  cuda::reach_count<float, std::uint32_t>(gradient, residual, n, 0x40400000, workspace, nullptr);
  const std::size_t found = cuda::reach_found(workspace, nullptr);
  auto* more = allocate<std::uint32_t>(found);
  cuda::reach_take(residual, residual, n, 0x40400000, found, more, allocate<float>(found),
                   workspace, nullptr);
}

void run_codec(std::size_t n, std::size_t k, Codec codec) {
  std::vector<std::uint32_t> positions(k);
  for (std::size_t i = 0; i < k; ++i) positions[i] = static_cast<std::uint32_t>(n / k * i + i % 2);
  auto* indices = upload(positions);
  auto* workspace = allocate<char>(cuda::codec_workspace(n, k, codec));
  auto* out = allocate<std::uint8_t>(4 * n);
  cuda::encode_indices(indices, k, n, codec, out, workspace, nullptr);
  const std::size_t size = cuda::encoded_bytes(workspace, nullptr);
  auto* decoded = allocate<std::uint32_t>(k);
  cuda::decode_indices(out, size, n, k, codec, decoded, workspace, nullptr);
  cuda::check_decoded(workspace, nullptr);
  float* values = upload(normal(k));
  float* dense = upload(normal(n));
  cuda::decode_scatter_add(out, size, n, k, codec, ValueType::float32,
                           reinterpret_cast<std::uint8_t*>(values), 1.0f, dense, workspace,
                           nullptr);
  cuda::scatter_add(dense, n, decoded, values, k, 1.0f, workspace, nullptr);
  const Sparse<float, std::uint32_t> vectors[] = {{decoded, values, k}, {indices, values, k}};
  cuda::scatter_sum(dense, n, vectors, 2, 1.0f, workspace, nullptr);
  cuda::check_scatter(workspace, nullptr);
  cuda::crc32(out, size, size, allocate<std::uint32_t>(1), nullptr);
  for (std::size_t i = 0; i < k; ++i) {
    if (decoded[i] != positions[i]) throw std::runtime_error("decoded indices differ");
  }
}

void run_values(std::size_t n) {
  float* values = upload(normal(n));
  float* residual = upload(normal(n));
  auto* workspace = allocate<char>(cuda::kQuantizeWorkspace);
  for (int type = 3; type <= kValueTypes; ++type) {
    auto* out = allocate<std::uint8_t>(4 * n + 64);
    const auto kind = static_cast<ValueType>(type);
    cuda::quantize(kind, values, residual, n, 1, out, workspace, nullptr);
    cuda::dequantize(kind, out, n, values, nullptr);
  }
  cuda::add(values, residual, n, nullptr);
}

void run_all() {
  for (const char* multiprocessors : {"1", "3"}) {
    setenv("EMULATED_MULTIPROCESSORS", multiprocessors, 1);
    run_topk(20'000, 100);  // candidates in a pool
    run_topk(5'000, 3'000);
    for (const Codec codec : {Codec::rice, Codec::elias_fano, Codec::bitmap, Codec::raw}) {
      run_codec(9'000, 2'100, codec);
    }
    run_values(3'001);
  }
}

}  // namespace
}  // namespace paropt

int main(int count, char** arguments) {
  try {
    if (count > 1) return paropt::run_broken(arguments[1], count > 2);
    paropt::run_all();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
