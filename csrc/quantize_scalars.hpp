// What becomes of one value when it is quantised: arithmetic that CPU and GPU share, so that both
// make the same bits. docs/wire-format.md has the formulas.
#pragma once

#include <cstdint>

#include "common.hpp"

namespace paropt {

constexpr std::uint32_t kGolden = 0x9e3779b9;
constexpr float kQsgdUnit = 4096, kLeastQsgdScale = 0x1p-110f;  // so that unit / scale is finite

PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE bool is_finite(float x) {
  return key_of(x) < FloatBits<float>::kInfinity;
}

// Spread the seed and the number of a group over 32 bits: G. L. Steele et al., "Fast splittable
// pseudorandom number generators", OOPSLA 2014.
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE std::uint32_t group_random(std::uint64_t seed,
                                                                   std::uint64_t group) {
  std::uint64_t x = seed + (group + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return static_cast<std::uint32_t>((x ^ x >> 31) >> 32);
}

// The last mixing steps of MurmurHash3 make 32 random bits of a counter.
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x85ebca6b;
  x = (x ^ x >> 13) * 0xc2b2ae35;
  return x ^ x >> 16;
}

// The scale for codes up to `steps`: 0 where it would be below `least`, NaN where a value is not
// finite, and so small that no code decodes to infinity.
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE float scale_for(std::uint32_t key, float steps,
                                                        float least) {
  if (key >= FloatBits<float>::kInfinity) return float_of(0x7fc00000);
  float scale = float_of(key) / steps;
  if (!is_finite(scale * steps)) scale = float_of(bits_of(scale) - 1);
  return scale < least ? 0 : scale;
}

// What error feedback keeps of acc when `sent` goes out: nothing of a value that is not finite.
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE float kept(float acc, float sent) {
  return is_finite(acc) ? acc - sent : 0;
}

// Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE std::int32_t nearest(float x) {
  return static_cast<std::int32_t>(bits_of(x + 0x1.8p23f)) - 0x4b400000;
}

}  // namespace paropt
