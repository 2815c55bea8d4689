#include "reduce.hpp"

#include <algorithm>
#include <string>

#include "common.hpp"

namespace paropt {

constexpr std::size_t kScatterAhead = 128;  // entries

}  // namespace paropt

#define PAROPT_LOOPS "reduce_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {

// Below two such blocks per thread, waking the threads costs more than they save.
constexpr std::size_t kAddBlock = 65536;

template <class T>
void add(T* out, const T* in, std::size_t n) {
  const std::size_t blocks = ceil_div(n, kAddBlock);
  [[maybe_unused]] const int threads = threads_for(blocks, 2);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t first = b * kAddBlock;
    PAROPT_DISPATCH(add_block(out + first, in + first, std::min(kAddBlock, n - first)));
  }
}

template <class T, class I>
void scatter_add(T* dense, std::size_t n, const I* indices, const T* values, std::size_t k,
                 T scale) {
  if (k == 0) return;
  const I most = PAROPT_DISPATCH(largest(indices, k));
  if (most >= n) {
    throw std::invalid_argument("indices must be below the length of dense, " + std::to_string(n) +
                                ", got " + std::to_string(most));
  }
  PAROPT_DISPATCH(scatter_add_block(dense, indices, values, k, scale));
}

float read_all(const float* in, std::size_t n) { return PAROPT_DISPATCH(sum_all(in, n)); }

template void add(float*, const float*, std::size_t);
template void add(double*, const double*, std::size_t);
template void scatter_add(float*, std::size_t, const std::uint32_t*, const float*, std::size_t,
                          float);
template void scatter_add(float*, std::size_t, const std::uint64_t*, const float*, std::size_t,
                          float);
template void scatter_add(double*, std::size_t, const std::uint32_t*, const double*, std::size_t,
                          double);
template void scatter_add(double*, std::size_t, const std::uint64_t*, const double*, std::size_t,
                          double);

}  // namespace paropt
