// The two floats of 16 bits, as storage, and their conversions; rounding is to nearest, ties to
// even, as NumPy and ml_dtypes do it.
#pragma once

#include <cstdint>
#include <cstring>

// Also for kernels of the GPU, where its compiler is at work.
#ifdef __CUDACC__
#define PAROPT_HOST_DEVICE __host__ __device__
#else
#define PAROPT_HOST_DEVICE
#endif

namespace paropt {

struct Float16 {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

PAROPT_HOST_DEVICE inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

PAROPT_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

PAROPT_HOST_DEVICE inline float to_float(BFloat16 x) {
  return float_of(std::uint32_t{x.bits} << 16);
}

// A NaN comes out quiet, as from the processor. Multiplying by 2^112 moves the exponent's bias and
// makes subnormal numbers normal.
PAROPT_HOST_DEVICE inline float to_float(Float16 x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
  if (magnitude > 0x7c00) return float_of(sign | 0x7fc00000 | (magnitude & 0x3ffu) << 13);
  if (magnitude == 0x7c00) return float_of(sign | 0x7f800000);
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

template <class T>
PAROPT_HOST_DEVICE T rounded(float x);

template <>
PAROPT_HOST_DEVICE inline BFloat16 rounded<BFloat16>(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return {static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x7fc0)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <>
PAROPT_HOST_DEVICE inline Float16 rounded<Float16>(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
  const std::uint32_t sign = bits >> 16 & 0x8000;
  std::uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x47800000) {  // 65536, infinity included
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {  // subnormal: the sum rounds at the last bit of a half
    half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

PAROPT_HOST_DEVICE inline float sum(float a, float b) { return a + b; }
PAROPT_HOST_DEVICE inline double sum(double a, double b) { return a + b; }
PAROPT_HOST_DEVICE inline Float16 sum(Float16 a, Float16 b) {
  return rounded<Float16>(to_float(a) + to_float(b));
}
PAROPT_HOST_DEVICE inline BFloat16 sum(BFloat16 a, BFloat16 b) {
  return rounded<BFloat16>(to_float(a) + to_float(b));
}

}  // namespace paropt
