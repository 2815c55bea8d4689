#include "fold.hpp"

#include <algorithm>
#include <cstring>

#include "common.hpp"

namespace paropt {

// Elements folded at a time: the block, its inputs and its outputs fit into the L1 cache.
constexpr std::size_t kBlock = 1024;

template <class To, class From>
inline To from_bits(From bits) {
  static_assert(sizeof(To) == sizeof(From));
  To value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class To, class From>
inline To to_bits(From value) {
  return from_bits<To>(value);
}

}  // namespace paropt

#define PAROPT_LOOPS "fold_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {

template <class T>
void fold(Op op, T* own, const T* received, std::size_t n) {
  PAROPT_DISPATCH(fold_all(op, own, received, n));
}

template <class T>
void divide(T* data, std::size_t n, int divisor) {
  PAROPT_DISPATCH(divide_all(data, n, static_cast<T>(divisor)));
}

template <class T>
void widen(float* out, const T* in, std::size_t n) {
  PAROPT_DISPATCH(widen_all(out, in, n));
}

template <class T>
void narrow(T* out, const float* in, std::size_t n) {
  PAROPT_DISPATCH(narrow_all(out, in, n));
}

template <class T>
void reduce(Op op, const T* const* in, int inputs, T* const* out, int outputs, std::size_t n,
            int divisor, bool stream) {
  using A = typename Accumulator<T>::type;
  const A by = static_cast<A>(divisor);
  for (std::size_t at = 0; at < n; at += kBlock) {
    const std::size_t length = std::min(kBlock, n - at);
    PAROPT_DISPATCH(reduce_block(op, in, inputs, out, outputs, at, length, by, stream));
  }
}

void stream_copy(void* out, const void* in, std::size_t bytes) {
  PAROPT_DISPATCH(stream_bytes(static_cast<char*>(out), static_cast<const char*>(in), bytes));
}

void stream_fence() {
#if PAROPT_X86
  _mm_sfence();
#endif
}

#define PAROPT_INSTANTIATE_REDUCE(T) \
  template void reduce(Op, const T* const*, int, T* const*, int, std::size_t, int, bool)
#define PAROPT_INSTANTIATE(T)                        \
  template void fold(Op, T*, const T*, std::size_t); \
  template void divide(T*, std::size_t, int);        \
  PAROPT_INSTANTIATE_REDUCE(T)
#define PAROPT_INSTANTIATE_NARROW(T)                   \
  template void widen(float*, const T*, std::size_t);  \
  template void narrow(T*, const float*, std::size_t); \
  PAROPT_INSTANTIATE_REDUCE(T)

PAROPT_INSTANTIATE(float);
PAROPT_INSTANTIATE(double);
PAROPT_INSTANTIATE(std::int32_t);
PAROPT_INSTANTIATE(std::int64_t);
PAROPT_INSTANTIATE_NARROW(Half);
PAROPT_INSTANTIATE_NARROW(Bfloat16);

}  // namespace paropt
