// The loops of topk.cpp; see foreach_isa.hpp and, for the words, topk.cpp.

// Bit j says whether x[j] has a key of at least `bound`, for j < width <= 64.
template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least(const T* x, std::size_t width,
                                                          KeyOf<T> bound) {
  std::uint64_t hits = 0;
  for (std::size_t j = 0; j < width; ++j) hits |= std::uint64_t{key_of(x[j]) >= bound} << j;
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

#else

template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t at_least64(const T* x, KeyOf<T> bound) {
  return at_least(x, 64, bound);
}

#endif

// Append the entries x[j] that `hits` names, and their positions, to a list.
template <class T, class I>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t take(std::uint64_t hits, const T* x, I first,
                                                    I* positions, T* values) {
  std::size_t taken = 0;
  for (; hits != 0; hits &= hits - 1, ++taken) {
    const int j = __builtin_ctzll(hits);
    positions[taken] = first + static_cast<I>(j);
    values[taken] = x[j];
  }
  return taken;
}

#if PAROPT_LEVEL == 2

// With many hits a register compress and a whole store beat the loop above. Zen 4 has traps: the
// memory form of compress is microcoded, and the zero-masked form waits for its last result.
// May write up to 16 entries past the last one taken.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t take(std::uint64_t hits, const float* x,
                                                    std::uint32_t first, std::uint32_t* positions,
                                                    float* values) {
  if (__builtin_popcountll(hits) < 6) {
    return take<float, std::uint32_t>(hits, x, first, positions, values);
  }
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t taken = 0;
  for (int j = 0; j < 64; j += 16) {
    const auto mask = static_cast<__mmask16>(hits >> j);
    const __m512i position =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first) + j), lanes);
    const __m512i value = _mm512_loadu_si512(x + j);
    _mm512_storeu_si512(positions + taken, _mm512_mask_compress_epi32(position, mask, position));
    _mm512_storeu_si512(values + taken, _mm512_mask_compress_epi32(value, mask, value));
    taken += static_cast<std::size_t>(__builtin_popcount(mask));
  }
  return taken;
}

#endif

template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void clear(std::uint64_t hits, T* x) {
  for (; hits != 0; hits &= hits - 1) x[__builtin_ctzll(hits)] = T{0};
}

// Collect the entries of one block whose key is at least `bound` into positions and values, which
// have room for `count` entries and 16 more; return their number. With a residual, first add the
// gradient to it when `accumulate` is set, then move (not copy) the entries out of it.
template <class T, class I>
PAROPT_TARGET std::size_t collect(const T* gradient, T* residual, bool accumulate,
                                  std::size_t count, I first, KeyOf<T> bound, I* positions,
                                  T* values) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; i += 64) {
    const std::size_t width = count - i < 64 ? count - i : 64;
    const T* x = residual != nullptr ? residual + i : gradient + i;
    if (accumulate) {
      for (std::size_t j = 0; j < width; ++j) residual[i + j] += gradient[i + j];
    }
    const std::uint64_t hits = width == 64 ? at_least64(x, bound) : at_least(x, width, bound);
    if (hits == 0) continue;
    // A partial group has fewer than 64 readable entries, which the overload for many hits reads.
    found +=
        width == 64
            ? take(hits, x, static_cast<I>(first + i), positions + found, values + found)
            : take<T, I>(hits, x, static_cast<I>(first + i), positions + found, values + found);
    if (residual != nullptr) clear(hits, residual + i);
  }
  return found;
}

template <class T>
PAROPT_TARGET std::size_t count_nonfinite(const T* x, std::size_t n) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; ++i) found += key_of(x[i]) >= FloatBits<T>::kInfinity;
  return found;
}

// Move the candidates that win to `to_positions` and `to_values` (which may be the lists
// themselves), put the others back into the residual, and return the number of winners.
template <class T, class I>
PAROPT_TARGET std::size_t keep(const I* positions, const T* values, std::size_t count, Cut<T>& cut,
                               T* residual, I* to_positions, T* to_values) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const KeyOf<T> key = key_of(values[i]);
    const bool tied = key == cut.key && cut.ties > 0;
    cut.ties -= tied;
    if (key > cut.key || tied) {
      to_positions[kept] = positions[i];
      to_values[kept++] = values[i];
    } else if (residual != nullptr) {
      residual[positions[i]] = values[i];
    }
  }
  return kept;
}

template <class T>
PAROPT_TARGET void key_range(const T* values, std::size_t m, KeyOf<T>& least, KeyOf<T>& most) {
  KeyOf<T> low = key_of(values[0]), high = low;
  for (std::size_t i = 1; i < m; ++i) {
    const KeyOf<T> key = key_of(values[i]);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  least = low;
  most = high;
}

// Count the keys of [least, most] by (key - least) >> shift.
template <class T>
PAROPT_TARGET void histogram(const T* values, std::size_t m, KeyOf<T> least, KeyOf<T> most,
                             unsigned shift, std::size_t* bins) {
  const KeyOf<T> range = most - least;
  for (std::size_t i = 0; i < m; ++i) {
    const KeyOf<T> above = key_of(values[i]) - least;  // wraps to a large number below least
    if (above <= range) ++bins[above >> shift];
  }
}
