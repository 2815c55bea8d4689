// The loops of topk.cpp; see foreach_isa.hpp and, for the words, topk.cpp.

// ---- residual += gradient ----------------------------------------------------------------------

template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void accumulate(T* __restrict residual,
                                                   const T* __restrict gradient,
                                                   std::size_t count) {
  for (std::size_t j = 0; j < count; ++j) residual[j] = sum(residual[j], gradient[j]);
}

#if PAROPT_LEVEL > 0

// Eight entries at a time with the processor's own conversions; the rest as above.
PAROPT_TARGET PAROPT_ALWAYS_INLINE void accumulate(Float16* residual, const Float16* gradient,
                                                   std::size_t count) {
  std::size_t j = 0;
  for (; j + 8 <= count; j += 8) {
    auto* to = reinterpret_cast<__m128i*>(residual + j);
    const auto* from = reinterpret_cast<const __m128i*>(gradient + j);
    const __m256 total =
        _mm256_add_ps(_mm256_cvtph_ps(_mm_loadu_si128(to)), _mm256_cvtph_ps(_mm_loadu_si128(from)));
    _mm_storeu_si128(to, _mm256_cvtps_ph(total, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; j < count; ++j) residual[j] = sum(residual[j], gradient[j]);
}

#endif

template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t add_at_least64(T* residual, const T* gradient,
                                                                KeyOf<T> bound) {
  accumulate(residual, gradient, 64);
  return at_least64(residual, bound);
}

#if PAROPT_LEVEL == 2

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t add_at_least64(float* residual,
                                                                const float* gradient,
                                                                std::uint32_t bound) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i least = _mm512_set1_epi32(static_cast<int>(bound));
  std::uint64_t hits = 0;
  for (int j = 0; j < 64; j += 16) {
    const __m512 acc = _mm512_add_ps(_mm512_loadu_ps(residual + j), _mm512_loadu_ps(gradient + j));
    _mm512_storeu_ps(residual + j, acc);
    const __m512i key = _mm512_and_si512(_mm512_castps_si512(acc), magnitude);
    hits |= std::uint64_t{_mm512_cmpge_epu32_mask(key, least)} << j;
  }
  return hits;
}

#endif

// ---- candidates of a block ---------------------------------------------------------------------

// The hits among 64 entries of x; with `add_to`, which is x then, first add the gradient.
template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint64_t hits64(const T* gradient, T* add_to, const T* x,
                                                        KeyOf<T> bound) {
  constexpr std::size_t kLine = 64 / sizeof(T);
  for (std::size_t j = 0; j < 64; j += kLine) {
    fetch_ahead(x + j);
    if (add_to != nullptr) fetch_ahead(gradient + j);
  }
  if (add_to != nullptr) return add_at_least64(add_to, gradient, bound);
  return at_least64(x, bound);
}

// List the places of the entries that reach the bound, and return how many they are; with `add_to`,
// which is x then, first add the gradient. Writes up to 64 past the list.
template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t locate(const T* gradient, T* add_to, const T* x,
                                                      std::size_t count, KeyOf<T> bound,
                                                      std::uint16_t* places) {
  std::uint16_t* end = places;
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    T* to = add_to == nullptr ? nullptr : add_to + i;
    end = append_ones<true>(hits64(gradient + i, to, x + i, bound), i, end);
  }
  if (i < count) {
    if (add_to != nullptr) accumulate(add_to + i, gradient + i, count - i);
    end = append_ones<true>(at_least(x + i, count - i, bound), i, end);
  }
  return static_cast<std::size_t>(end - places);
}

// Copy the entries at the listed places of x, which starts at position `first`; with a residual,
// which is x then, leave 0 in place of those whose key is at least `guess`.
template <class T, class I>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void take(const std::uint16_t* __restrict places, std::size_t m,
                                             const T* x, I first, KeyOf<T> guess,
                                             I* __restrict positions, T* values, T* residual) {
  for (std::size_t i = 0; i < m; ++i) {
    positions[i] = static_cast<I>(first + places[i]);
    values[i] = x[places[i]];
    if (residual != nullptr) {
      residual[places[i]] = key_of(values[i]) >= guess ? T{} : values[i];
    }
  }
}

// Collect the entries of one block whose key is at least `bound` into positions and values, which
// have room for `count`; return their number. With a residual, first add the gradient to it when
// `add` is set, then move the entries whose key is at least `guess` out of it and copy the others.
// Strip by strip: what is copied is still in the nearest cache, and the memory fetches the next
// strip meanwhile.
template <class T, class I>
PAROPT_TARGET std::size_t collect(const T* gradient, T* residual, bool add, std::size_t count,
                                  I first, KeyOf<T> bound, KeyOf<T> guess, I* positions,
                                  T* values) {
  std::uint16_t places[kStrip + kPlaceSlack];
  std::size_t found = 0;
  for (std::size_t start = 0; start < count; start += kStrip) {
    const std::size_t width = std::min(kStrip, count - start);
    const auto at = static_cast<I>(first + start);
    const T* g = gradient + start;
    std::size_t m;
    if (residual == nullptr) {
      m = locate<T>(g, nullptr, g, width, bound, places);
      take<T>(places, m, g, at, guess, positions + found, values + found, nullptr);
    } else {
      T* r = residual + start;
      m = add ? locate(g, r, r, width, bound, places)
              : locate<T>(g, nullptr, r, width, bound, places);
      take<T>(places, m, r, at, guess, positions + found, values + found, r);
    }
    found += m;
  }
  return found;
}

template <class T>
PAROPT_TARGET std::size_t count_reaching(const T* gradient, T* residual, std::size_t count,
                                         KeyOf<T> bound) {
  std::uint16_t places[kBlock + kPlaceSlack];
  const T* x = residual != nullptr ? residual : gradient;
  return locate(gradient, residual, x, count, bound, places);
}

template <class T>
PAROPT_TARGET std::size_t count_nonfinite(const T* x, std::size_t n) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; ++i) found += key_of(x[i]) >= FloatBits<T>::kInfinity;
  return found;
}

// ---- winners among candidates ------------------------------------------------------------------

// Move the candidates that win to `to_positions` and `to_values` (which may be the lists
// themselves) and return their number. In the residual, where those with a key of at least `guess`
// are 0, put this right: 0 for winners, their values for the others.
template <class T, class I>
PAROPT_TARGET std::size_t keep_some(const I* positions, const T* values, std::size_t count,
                                    Cut<T>& cut, T* residual, KeyOf<T> guess, I* to_positions,
                                    T* to_values) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const I position = positions[i];
    const T value = values[i];
    const KeyOf<T> key = key_of(value);
    const bool tied = key == cut.key && cut.ties > 0;
    const bool wins = key > cut.key || tied;
    cut.ties -= tied;
    if (residual != nullptr && wins != (key >= guess)) residual[position] = wins ? T{} : value;
    if (wins) {
      to_positions[kept] = position;
      to_values[kept++] = value;
    }
  }
  return kept;
}

template <class T, class I>
PAROPT_TARGET std::size_t keep(const I* positions, const T* values, std::size_t count, Cut<T>& cut,
                               T* residual, KeyOf<T> guess, I* to_positions, T* to_values,
                               std::size_t) {
  return keep_some(positions, values, count, cut, residual, guess, to_positions, to_values);
}

#if PAROPT_LEVEL == 2

// Branch-free but for ties and wrong guesses: winners are compressed to the output. `room` entries
// may be written there; its last ones are left to the loop above.
PAROPT_TARGET std::size_t keep(const std::uint32_t* positions, const float* values,
                               std::size_t count, Cut<float>& cut, float* residual,
                               std::uint32_t guess, std::uint32_t* to_positions, float* to_values,
                               std::size_t room) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i least = _mm512_set1_epi32(static_cast<int>(cut.key));
  const __m512i guessed = _mm512_set1_epi32(static_cast<int>(guess));
  std::uint32_t wrong_positions[16];
  float right_values[16];
  std::size_t i = 0, kept = 0;
  for (; i + 16 <= count && kept + 16 <= room; i += 16) {
    const __m512i position = _mm512_loadu_si512(positions + i);
    const __m512i value = _mm512_loadu_si512(values + i);
    const __m512i key = _mm512_and_si512(value, magnitude);
    __mmask16 wins = _mm512_cmpgt_epu32_mask(key, least);
    if (__mmask16 tied = _mm512_cmpeq_epu32_mask(key, least); __builtin_expect(tied != 0, 0)) {
      const auto room_for = static_cast<unsigned>(std::min<std::size_t>(cut.ties, 16));
      tied = static_cast<__mmask16>(_pdep_u32((1u << room_for) - 1, tied));  // the first of them
      wins = static_cast<__mmask16>(wins | tied);
      cut.ties -= static_cast<std::size_t>(__builtin_popcount(tied));
    }
    _mm512_storeu_si512(to_positions + kept, _mm512_mask_compress_epi32(position, wins, position));
    _mm512_storeu_si512(to_values + kept, _mm512_mask_compress_epi32(value, wins, value));
    kept += static_cast<std::size_t>(__builtin_popcount(wins));
    if (residual == nullptr) continue;
    const __mmask16 wrong = wins ^ _mm512_cmpge_epu32_mask(key, guessed);
    if (wrong == 0) continue;
    const __m512i right = _mm512_maskz_mov_epi32(_knot_mask16(wins), value);
    _mm512_storeu_si512(wrong_positions, _mm512_mask_compress_epi32(position, wrong, position));
    _mm512_storeu_si512(right_values, _mm512_mask_compress_epi32(right, wrong, right));
    const int found = __builtin_popcount(wrong);
    for (int j = 0; j < found; ++j) residual[wrong_positions[j]] = right_values[j];
  }
  return kept + keep_some(positions + i, values + i, count - i, cut, residual, guess,
                          to_positions + kept, to_values + kept);
}

#endif

// ---- keys --------------------------------------------------------------------------------------

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

// Move the keys of [least, most] to a list and return their number; `above` counts the keys above.
// Nothing is listed beyond `capacity`, though the count goes on. The values may be keys themselves,
// and the list may be theirs. Writes up to 16 past the capacity.
template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t narrow_some(const T* values, std::size_t m,
                                                           KeyOf<T> least, KeyOf<T> most,
                                                           KeyOf<T>* list, std::size_t capacity,
                                                           std::size_t& above) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < m; ++i) {
    const KeyOf<T> key = key_of(values[i]);
    list[found < capacity ? found : capacity] = key;
    found += key >= least && key <= most;
    above += key > most;
  }
  return found;
}

template <class T>
PAROPT_TARGET std::size_t narrow(const T* values, std::size_t m, KeyOf<T> least, KeyOf<T> most,
                                 KeyOf<T>* list, std::size_t capacity, std::size_t& above) {
  std::size_t i = 0, found = 0;
#if PAROPT_LEVEL == 2
  if constexpr (sizeof(T) == 4) {
    const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(FloatBits<T>::kMagnitude));
    const __m512i low = _mm512_set1_epi32(static_cast<int>(least));
    const __m512i high = _mm512_set1_epi32(static_cast<int>(most));
    for (; i + 16 <= m; i += 16) {
      const __m512i key = _mm512_and_si512(_mm512_loadu_si512(values + i), magnitude);
      const __mmask16 beyond = _mm512_cmpgt_epu32_mask(key, high);
      const __mmask16 inside = _mm512_mask_cmpge_epu32_mask(_knot_mask16(beyond), key, low);
      _mm512_storeu_si512(list + (found < capacity ? found : capacity),
                          _mm512_mask_compress_epi32(key, inside, key));
      found += static_cast<std::size_t>(__builtin_popcount(inside));
      above += static_cast<std::size_t>(__builtin_popcount(beyond));
    }
  }
#endif
  const std::size_t used = found < capacity ? found : capacity;
  return found + narrow_some(values + i, m - i, least, most, list + used, capacity - used, above);
}
