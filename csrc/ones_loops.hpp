// Where the ones of a word are; see foreach_isa.hpp.

// Append `first` plus the position of each one to a list and return its end. No branch depends on
// whether a word has ones, so that a loop over words runs at the speed of the memory. kFew expects
// at most 16 ones. Writes up to 64 past the list.
#if PAROPT_LEVEL == 2

// Register compress and whole stores. Zen 4 has traps: the memory form of compress is microcoded,
// and the zero-masked form waits for its last result.
template <bool kFew>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint16_t* append_ones(std::uint64_t word, std::size_t first,
                                                              std::uint16_t* list) {
  const __m512i places = _mm512_load_si512(kByteLanes.at);
  const __m512i found = _mm512_mask_compress_epi8(places, word, places);
  const __m512i base = _mm512_set1_epi16(static_cast<short>(first));
  const int ones = __builtin_popcountll(word);
  if (kFew) {
    const __m256i few = _mm256_cvtepu8_epi16(_mm512_castsi512_si128(found));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(list),
                        _mm256_add_epi16(few, _mm512_castsi512_si256(base)));
    if (__builtin_expect(ones <= 16, 1)) return list + ones;
  }
  const __m512i low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(found));
  _mm512_storeu_si512(list, _mm512_add_epi16(low, base));
  if (ones > 32) {
    const __m512i high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(found, 1));
    _mm512_storeu_si512(list + 32, _mm512_add_epi16(high, base));
  }
  return list + ones;
}

#else

// Two are written for every word, so that a branch is mispredicted only at one with more.
template <bool kFew>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint16_t* append_ones(std::uint64_t word, std::size_t first,
                                                              std::uint16_t* list) {
  constexpr std::uint64_t kLast = std::uint64_t{1} << 63;  // no one, perhaps, but never without one
  const int ones = __builtin_popcountll(word);
  std::uint64_t rest = word | kLast;
  for (int j = 0; j < 2 || j < ones; ++j) {
    list[j] = static_cast<std::uint16_t>(first + static_cast<std::size_t>(__builtin_ctzll(rest)));
    rest = (rest & (rest - 1)) | kLast;
  }
  return list + ones;
}

#endif
