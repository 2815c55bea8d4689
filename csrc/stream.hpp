// Random numbers by name: a key, an individual and an index, never by the number of calls before.
#pragma once

#include "common.hpp"

namespace paropt {

// The last steps of SplitMix64: G. L. Steele et al., "Fast splittable pseudorandom number
// generators", OOPSLA 2014.
PAROPT_ALWAYS_INLINE std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// The random numbers of one individual, by their index.
struct Stream {
  std::uint64_t name;
  std::uint32_t a, b;

  PAROPT_ALWAYS_INLINE explicit Stream(std::uint64_t hash)
      : name(hash),
        a(static_cast<std::uint32_t>(hash)),
        b(static_cast<std::uint32_t>(hash >> 32)) {}
  PAROPT_ALWAYS_INLINE Stream(std::uint64_t key, std::uint64_t individual)
      : Stream(mix(key + (individual + 1) * 0x9e3779b97f4a7c15)) {}
  PAROPT_ALWAYS_INLINE Stream second() const { return Stream(mix(name + 0x632be59bd9b4e019)); }
};

PAROPT_ALWAYS_INLINE std::uint32_t word(Stream s, std::uint32_t j) {
  std::uint32_t x = j * 0x9e3779b9u + s.a;
  x = ((x ^ x >> 16) * 0x21f0aaadu) ^ s.b;
  x = (x ^ x >> 15) * 0x735a2d97u;
  return x ^ x >> 15;
}

// An integer below limit, up to 2^32.
PAROPT_ALWAYS_INLINE std::uint32_t below(Stream s, std::uint32_t j, std::size_t limit) {
  return static_cast<std::uint32_t>(std::uint64_t{word(s, j)} * limit >> 32);
}

}  // namespace paropt
