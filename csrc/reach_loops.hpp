// Which entries of 64 reach a bound; see foreach_isa.hpp.

// Bit j says whether x[j] has a key of at least `bound`, for j < width <= 64.
template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least(const T* x, std::size_t width,
                                                          KeyOf<T> bound) {
  std::uint64_t hits = 0;
  for (std::size_t j = 0; j < width; ++j) hits |= std::uint64_t{key_of(x[j]) >= bound} << j;
  return hits;
}

// Compilers make vectors of the loop over flags; a multiplication then gathers eight of them.
template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const T* x, KeyOf<T> bound) {
  std::uint8_t flags[64];
  for (std::size_t j = 0; j < 64; ++j) flags[j] = key_of(x[j]) >= bound;
  std::uint64_t hits = 0;
  for (std::size_t j = 0; j < 64; j += 8) {
    hits |= (load<std::uint64_t>(flags + j) * 0x0102040810204080 >> 56) << j;
  }
  return hits;
}

#if PAROPT_LEVEL == 2

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const float* x, std::uint32_t bound) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i least = _mm512_set1_epi32(static_cast<int>(bound));
  std::uint64_t hits = 0;
  for (int j = 0; j < 64; j += 16) {
    const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + j), magnitude);
    hits |= std::uint64_t{_mm512_cmpge_epu32_mask(key, least)} << j;
  }
  return hits;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const double* x, std::uint64_t bound) {
  const __m512i magnitude = _mm512_set1_epi64(0x7fffffffffffffff);
  const __m512i least = _mm512_set1_epi64(static_cast<long long>(bound));
  std::uint64_t hits = 0;
  for (int j = 0; j < 64; j += 8) {
    const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + j), magnitude);
    hits |= std::uint64_t{_mm512_cmpge_epu64_mask(key, least)} << j;
  }
  return hits;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const void* x, std::uint16_t bound) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  const __m512i least = _mm512_set1_epi16(static_cast<short>(bound));
  const auto* vectors = static_cast<const __m512i*>(x);
  const __m512i low = _mm512_and_si512(_mm512_loadu_si512(vectors), magnitude);
  const __m512i high = _mm512_and_si512(_mm512_loadu_si512(vectors + 1), magnitude);
  return std::uint64_t{_mm512_cmpge_epu16_mask(low, least)} |
         std::uint64_t{_mm512_cmpge_epu16_mask(high, least)} << 32;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const Float16* x, std::uint16_t bound) {
  return at_least64(static_cast<const void*>(x), bound);
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const BFloat16* x,
                                                            std::uint16_t bound) {
  return at_least64(static_cast<const void*>(x), bound);
}

#elif PAROPT_LEVEL == 1

// Keys fit in the positive signed integers, so "at least bound" is "above bound - 1", also for 0.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const float* x, std::uint32_t bound) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i below = _mm256_set1_epi32(static_cast<int>(bound - 1));
  std::uint64_t hits = 0;
  for (int j = 0; j < 64; j += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + j));
    const __m256i above = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below);
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(above));
    hits |= static_cast<std::uint64_t>(mask) << j;
  }
  return hits;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const double* x, std::uint64_t bound) {
  const __m256i magnitude = _mm256_set1_epi64x(0x7fffffffffffffff);
  const __m256i below = _mm256_set1_epi64x(static_cast<long long>(bound - 1));
  std::uint64_t hits = 0;
  for (int j = 0; j < 64; j += 4) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + j));
    const __m256i above = _mm256_cmpgt_epi64(_mm256_and_si256(bits, magnitude), below);
    const int mask = _mm256_movemask_pd(_mm256_castsi256_pd(above));
    hits |= static_cast<std::uint64_t>(mask) << j;
  }
  return hits;
}

#endif
