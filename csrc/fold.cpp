#include "fold.hpp"

#include <cstring>
#include <type_traits>

#include "common.hpp"

namespace paropt {
namespace {

constexpr std::size_t kLine = 64;

// How many of so many lines each of two streams takes; what is left over follows them. The streams
// are half a page off each other's place in their pages: else their lines would meet in the same
// sets of the L1 cache.
constexpr std::size_t lines_apart(std::size_t lines) {
  constexpr std::size_t kPage = 4096 / kLine;
  const std::size_t half = lines / 2;
  return half < kPage ? half : (half - kPage / 2) / kPage * kPage + kPage / 2;
}

}  // namespace
}  // namespace paropt

#define PAROPT_LOOPS "fold_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

// Integers of the same width, unsigned: their sums wrap around. Other types stay.
template <class T, bool = std::is_integral_v<T>>
struct Wrapping {
  using type = T;
};
template <class T>
struct Wrapping<T, true> {
  using type = std::make_unsigned_t<T>;
};

}  // namespace

template <class T>
void fold(Op op, T* own, const T* received, std::size_t n) {
  using W = typename Wrapping<T>::type;
  if (op == Op::min) return PAROPT_DISPATCH(fold_all<Op::min>(own, received, n));
  if (op == Op::max) return PAROPT_DISPATCH(fold_all<Op::max>(own, received, n));
  W* const to = reinterpret_cast<W*>(own);
  PAROPT_DISPATCH(fold_all<Op::sum>(to, reinterpret_cast<const W*>(received), n));
}

template <class T>
void fold_wide(Op op, float* own, const T* received, std::size_t n) {
  if (op == Op::min) return PAROPT_DISPATCH(fold_all<Op::min>(own, received, n));
  if (op == Op::max) return PAROPT_DISPATCH(fold_all<Op::max>(own, received, n));
  PAROPT_DISPATCH(fold_all<Op::sum>(own, received, n));
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
void reduce(Op op, const void* const* in, int inputs, void* const* out, int outputs, std::size_t n,
            int divisor) {
  using W = typename Wrapping<T>::type;
  using A = typename Accumulator<T>::type;
  using B = typename Accumulator<W>::type;
  // Multiplying by a power of two gives the same bits as dividing by its inverse, and is faster.
  const bool exact = std::is_floating_point_v<A> && (divisor & (divisor - 1)) == 0;
  const B factor = exact ? B{1} / static_cast<B>(divisor) : B{1};
  const B by = exact ? B{1} : static_cast<B>(divisor);
  if (op == Op::min) {
    PAROPT_DISPATCH(reduce_all<Op::min, A, T>(in, inputs, out, outputs, n, A{1}, A{1}));
  } else if (op == Op::max) {
    PAROPT_DISPATCH(reduce_all<Op::max, A, T>(in, inputs, out, outputs, n, A{1}, A{1}));
  } else {
    PAROPT_DISPATCH(reduce_all<Op::sum, B, W>(in, inputs, out, outputs, n, factor, by));
  }
}

void copy_between(void* out, const void* in, std::size_t bytes) {
  PAROPT_DISPATCH(copy_bytes(static_cast<char*>(out), static_cast<const char*>(in), bytes));
}

#define PAROPT_INSTANTIATE_REDUCE(T) \
  template void reduce<T>(Op, const void* const*, int, void* const*, int, std::size_t, int)
#define PAROPT_INSTANTIATE(T)                        \
  template void fold(Op, T*, const T*, std::size_t); \
  template void divide(T*, std::size_t, int);        \
  PAROPT_INSTANTIATE_REDUCE(T)
#define PAROPT_INSTANTIATE_NARROW(T)                          \
  template void fold_wide(Op, float*, const T*, std::size_t); \
  template void widen(float*, const T*, std::size_t);         \
  template void narrow(T*, const float*, std::size_t);        \
  PAROPT_INSTANTIATE_REDUCE(T)

PAROPT_INSTANTIATE(float);
PAROPT_INSTANTIATE(double);
PAROPT_INSTANTIATE(std::int32_t);
PAROPT_INSTANTIATE(std::int64_t);
PAROPT_INSTANTIATE_NARROW(Float16);
PAROPT_INSTANTIATE_NARROW(BFloat16);

}  // namespace paropt
