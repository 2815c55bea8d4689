#include "reduce.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "common.hpp"

namespace paropt {

constexpr std::size_t kAddBlock = 65536;
// Bytes of a block of a sparse sum: it stays in the L1 cache while entries are added to it.
constexpr std::size_t kBlock = 16384;
constexpr std::size_t kPlaceSlack = 64;  // what may be written past a list of places

}  // namespace paropt

#define PAROPT_LOOPS "ones_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "reach_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "scatter_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "reduce_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {

template <class T>
void add(T* out, const T* in, std::size_t n) {
  const std::size_t blocks = ceil_div(n, kAddBlock);
  [[maybe_unused]] const int threads = threads_for_entries(n);
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
  PAROPT_DISPATCH(scatter_block(dense, indices, values, k, k, scale));
}

namespace {

constexpr std::size_t kLine = 64;
// A shorter vector stays in the caches, where its next reader finds it.
constexpr std::size_t kStreamBytes = 4 * 1024 * 1024;

void write_block(void* to, const void* block, std::size_t bytes, bool stream) {
  if (stream && bytes % kLine == 0) {
    PAROPT_DISPATCH(stream_lines(static_cast<char*>(to), static_cast<const char*>(block), bytes));
  } else {
    std::memcpy(to, block, bytes);
  }
}

template <class T, class I>
void check_rising(const Sparse<T, I>* vectors, std::size_t count, std::size_t n) {
  for (std::size_t v = 0; v < count; ++v) {
    if (PAROPT_DISPATCH(rising(vectors[v].indices, vectors[v].k, n))) continue;
    throw std::invalid_argument("indices must be strictly ascending and below the length of dense");
  }
}

}  // namespace

template <class T, class I>
void scatter_sum(T* dense, std::size_t n, const Sparse<T, I>* vectors, std::size_t count, T scale) {
  check_rising(vectors, count, n);
  alignas(kLine) T block[kBlock / sizeof(T)];
  std::vector<std::size_t> next(count, 0);
  const bool stream = n * sizeof(T) >= kStreamBytes;
  // The first block ends where a line does: all others then begin there.
  const std::size_t odd = reinterpret_cast<std::uintptr_t>(dense) % kLine / sizeof(T);
  std::size_t end = 0;
  for (std::size_t begin = 0; begin < n; begin = end) {
    end = std::min(n, begin + kBlock / sizeof(T) - (begin == 0 ? odd : 0));
    const std::size_t bytes = (end - begin) * sizeof(T);
    std::memset(block, 0, bytes);
    for (std::size_t v = 0; v < count; ++v) {
      const auto& [indices, values, k] = vectors[v];
      next[v] = PAROPT_DISPATCH(add_below(block, begin, end, indices, values, next[v], k, scale));
    }
    write_block(dense + begin, block, bytes, stream && (begin > 0 || odd == 0));
  }
#if PAROPT_X86
  _mm_sfence();
#endif
}

template <class T, class I>
std::size_t merge_sum(std::size_t n, const Sparse<T, I>* vectors, std::size_t count, I* indices,
                      T* values) {
  check_rising(vectors, count, n);
  alignas(kLine) T block[kBlock / sizeof(T)];
  std::vector<std::size_t> next(count, 0);
  std::size_t found = 0;
  for (;;) {
    // A block begins at the first entry that is left.
    std::size_t begin = n;
    for (std::size_t v = 0; v < count; ++v) {
      if (next[v] == vectors[v].k) continue;
      begin = std::min<std::size_t>(begin, vectors[v].indices[next[v]]);
    }
    if (begin == n) return found;
    const std::size_t width = std::min(n - begin, kBlock / sizeof(T));
    std::memset(block, 0, width * sizeof(T));
    for (std::size_t v = 0; v < count; ++v) {
      const auto& [at, what, k] = vectors[v];
      next[v] = PAROPT_DISPATCH(add_below(block, begin, begin + width, at, what, next[v], k, T{1}));
    }
    found += PAROPT_DISPATCH(
        take_nonzeros(block, width, static_cast<I>(begin), indices + found, values + found));
  }
}

float read_all(const float* in, std::size_t n) {
  const std::size_t blocks = ceil_div(n, kAddBlock);
  [[maybe_unused]] const int threads = threads_for_entries(n);
  if (threads == 1) return PAROPT_DISPATCH(sum_all(in, n));
  float total = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : total)
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t first = b * kAddBlock;
    total += PAROPT_DISPATCH(sum_all(in + first, std::min(kAddBlock, n - first)));
  }
  return total;
}

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

#define PAROPT_INSTANTIATE_SUMS(T, I)                                              \
  template void scatter_sum(T*, std::size_t, const Sparse<T, I>*, std::size_t, T); \
  template std::size_t merge_sum(std::size_t, const Sparse<T, I>*, std::size_t, I*, T*)
PAROPT_INSTANTIATE_SUMS(float, std::uint32_t);
PAROPT_INSTANTIATE_SUMS(float, std::uint64_t);
PAROPT_INSTANTIATE_SUMS(double, std::uint32_t);
PAROPT_INSTANTIATE_SUMS(double, std::uint64_t);

}  // namespace paropt
