// What all-reduces do with numbers: fold vectors into one, and copy between cores.
//
// The 16-bit floats are sums of float32: they are widened, folded, and rounded once (to nearest,
// ties to even) when the result is stored. Every loop runs in the order of its inputs, element by
// element, so that a result depends neither on the instruction set nor on how a vector is cut.
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.hpp"

namespace paropt {

// sum, mean: integers wrap around; a mean divides by the number of ranks. Which NaN a sum of two
//   NaNs gives (sign and payload) is not specified, but it is the same on all ranks.
// min, max: the received value replaces the own one if it is smaller (larger) or NaN. A NaN on any
//   rank so gives NaN, and of -0.0 and +0.0, which compare equal, the first one stays.
enum class Op { sum, mean, min, max };

enum class Dtype { float32, float64, float16, bfloat16, int32, int64 };

// The type in which values of T are folded.
template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Float16> {
  using type = float;
};
template <>
struct Accumulator<BFloat16> {
  using type = float;
};

inline std::size_t item_bytes(Dtype dtype) {
  constexpr std::size_t kBytes[] = {4, 8, 2, 2, 4, 8};
  return kBytes[static_cast<int>(dtype)];
}

// Call f with a null pointer of the type that `dtype` stands for.
template <class F>
decltype(auto) with_type(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::float32:
      return f(static_cast<float*>(nullptr));
    case Dtype::float64:
      return f(static_cast<double*>(nullptr));
    case Dtype::float16:
      return f(static_cast<Float16*>(nullptr));
    case Dtype::bfloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case Dtype::int32:
      return f(static_cast<std::int32_t*>(nullptr));
    case Dtype::int64:
      break;
  }
  return f(static_cast<std::int64_t*>(nullptr));
}

// own[i] = received[i] op own[i]; T is float, double, int32_t or int64_t. No overlap.
template <class T>
void fold(Op op, T* own, const T* received, std::size_t n);

// The same for T a 16-bit float.
template <class T>
void fold_wide(Op op, float* own, const T* received, std::size_t n);

template <class T>
void divide(T* data, std::size_t n, int divisor);

// 16-bit floats to float32 and back, rounding to nearest; other types do not occur.
template <class T>
void widen(float* out, const T* in, std::size_t n);
template <class T>
void narrow(T* out, const float* in, std::size_t n);

// Fold the vectors in[0..inputs) of T in this order, divide by `divisor` if it is not 1, and store
// the result to every out[0..outputs). An output may be one of the inputs; otherwise no overlap.
//
// Between cores that share memory what costs is a line that another core has written, or will; two
// are on their way at once more often where two places of the vectors are folded in turns.
template <class T>
void reduce(Op op, const void* const* in, int inputs, void* const* out, int outputs, std::size_t n,
            int divisor);

// memcpy in lines, from two places in turns, see reduce(). The library's own copies in another way
// from some length on, which takes up to twice as long where another core has touched `out` last.
void copy_between(void* out, const void* in, std::size_t bytes);

}  // namespace paropt
