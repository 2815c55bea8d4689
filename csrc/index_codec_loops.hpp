// The loops of index_codec.cpp; see foreach_isa.hpp. `start` is always the first position that an
// index may have: one past its predecessor.

template <class I>
PAROPT_TARGET bool ascending(const I* indices, std::size_t count) {
  I bad = 0;  // as wide as an index, so that the comparisons stay in vectors
  for (std::size_t i = 1; i < count; ++i) bad |= static_cast<I>(indices[i - 1] >= indices[i]);
  return bad == 0;
}

// Sum of the quotients of a block's gaps for the parameters l and l + 1; they add up to less than
// the range of I.
template <class I>
PAROPT_TARGET void quotient_sums(const I* indices, std::size_t count, std::uint64_t start,
                                 unsigned l, std::uint64_t* sums) {
  const I first = indices[0] - static_cast<I>(start);
  I sum = first >> l, next = first >> l >> 1;
  for (std::size_t i = 1; i < count; ++i) {
    const I quotient = static_cast<I>(indices[i] - indices[i - 1] - 1) >> l;
    sum += quotient;
    next += quotient >> 1;
  }
  sums[0] = sum;
  sums[1] = next;
}

// Appends bits, lowest first; writes whole words, so that up to 7 bytes past the last bit change.
struct BitWriter {
  std::uint8_t* to;
  std::uint64_t pending = 0;  // bits of the byte at `to`
  unsigned filled = 0;        // how many these are, below 8

  PAROPT_TARGET PAROPT_ALWAYS_INLINE void append(std::uint64_t bits, unsigned count) {  // <= 56
    const std::uint64_t word = pending | bits << filled;
    store(to, word);
    filled += count;
    to += filled >> 3;
    pending = word >> (filled & ~7u);
    filled &= 7;
  }

  PAROPT_TARGET PAROPT_ALWAYS_INLINE void append_unary(std::uint64_t quotient) {
    for (; quotient > 48; quotient -= 48) append(0, 48);
    append(std::uint64_t{1} << quotient, static_cast<unsigned>(quotient) + 1);
  }
};

// The indices of a block from the i-th on, one after the other. With kGaps the low bits and the
// quotient are those of a gap; else the low bits are those of the distance from `start`, and the
// quotient is how much its high bits grow.
template <bool kGaps, class I>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void encode_rest(const I* indices, std::size_t i,
                                                    std::size_t count, std::uint64_t start,
                                                    unsigned l, BitWriter& lows, BitWriter& unary) {
  const std::uint64_t mask = (std::uint64_t{1} << l) - 1;
  for (; i < count; ++i) {
    const std::uint64_t before = i == 0 ? start - 1 : std::uint64_t{indices[i - 1]};
    const std::uint64_t high = kGaps || i == 0 ? 0 : (before - start) >> l;
    const std::uint64_t distance = indices[i] - (kGaps ? before + 1 : start);
    lows.append(distance & mask, l);
    unary.append_unary((distance >> l) - high);
  }
}

#if PAROPT_LEVEL == 2

// Join 16 codes, each of at most 13 zeros and a one, two by two until there are two codes of eight;
// false when one of these is longer than 56 bits.
PAROPT_TARGET PAROPT_ALWAYS_INLINE bool join_unary(__m512i quotients, BitWriter& unary) {
  const __m512i one = _mm512_set1_epi32(1), low_half = _mm512_set1_epi64(0xffffffff);
  __m512i code = _mm512_sllv_epi32(one, quotients);
  __m512i size = _mm512_add_epi32(quotients, one);
  __m512i next = _mm512_srli_epi64(code, 32), next_size = _mm512_srli_epi64(size, 32);
  size = _mm512_and_si512(size, low_half);
  code = _mm512_or_si512(_mm512_and_si512(code, low_half), _mm512_sllv_epi64(next, size));
  size = _mm512_add_epi64(size, next_size);
  next = _mm512_unpackhi_epi64(code, code);
  code = _mm512_or_si512(code, _mm512_sllv_epi64(next, size));
  size = _mm512_add_epi64(size, _mm512_unpackhi_epi64(size, size));
  next = _mm512_shuffle_i64x2(code, code, 0xf5);
  code = _mm512_or_si512(code, _mm512_sllv_epi64(next, size));
  size = _mm512_add_epi64(size, _mm512_shuffle_i64x2(size, size, 0xf5));
  const __mmask8 wide = _mm512_mask_cmpgt_epu64_mask(0x11, size, _mm512_set1_epi64(56));
  if (wide != 0) return false;
  const __m256i code_high = _mm512_extracti64x4_epi64(code, 1);
  const __m256i size_high = _mm512_extracti64x4_epi64(size, 1);
  unary.append(static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(code))),
               static_cast<unsigned>(_mm_cvtsi128_si32(_mm512_castsi512_si128(size))));
  unary.append(static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm256_castsi256_si128(code_high))),
               static_cast<unsigned>(_mm_cvtsi128_si32(_mm256_castsi256_si128(size_high))));
  return true;
}

// Pack 16 numbers of l < 16 bits into 2 l bytes; writes 16 bytes from the last group of 8 on.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint8_t* pack_lows(__m512i lows, unsigned l,
                                                           std::uint8_t* to) {
  const __m128i by1 = _mm_cvtsi32_si128(static_cast<int>(l));
  const __m128i by2 = _mm_cvtsi32_si128(static_cast<int>(2 * l));
  const __m512i odd = _mm512_srli_epi64(lows, 32);
  __m512i packed = _mm512_and_si512(lows, _mm512_set1_epi64(0xffffffff));
  packed = _mm512_or_si512(packed, _mm512_sll_epi64(odd, by1));
  packed = _mm512_or_si512(packed, _mm512_sll_epi64(_mm512_unpackhi_epi64(packed, packed), by2));
  alignas(64) std::uint64_t fours[8];
  _mm512_store_si512(fours, packed);
  for (int group = 0; group < 8; group += 4) {
    const std::uint64_t low = fours[group], high = fours[group + 2];
    store(to, low | high << (4 * l));
    store(to + 8, high >> 1 >> (63 - 4 * l));
    to += l;
  }
  return to;
}

template <bool kGaps>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t encode_groups(const std::uint32_t* indices,
                                                             std::size_t count, std::uint32_t start,
                                                             unsigned l, BitWriter& lows,
                                                             BitWriter& unary) {
  const __m128i by = _mm_cvtsi32_si128(static_cast<int>(l));
  const __m512i mask = _mm512_set1_epi32(static_cast<int>((1u << l) - 1));
  const __m512i first = _mm512_set1_epi32(static_cast<int>(start)), one = _mm512_set1_epi32(1);
  __m512i before = kGaps ? _mm512_sub_epi32(first, one) : _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i index = _mm512_loadu_si512(indices + i);
    __m512i distance, quotient;
    if (kGaps) {
      distance = _mm512_sub_epi32(index, _mm512_alignr_epi32(index, before, 15));
      distance = _mm512_sub_epi32(distance, one);
      quotient = _mm512_srl_epi32(distance, by);
      before = index;
    } else {
      distance = _mm512_sub_epi32(index, first);
      const __m512i high = _mm512_srl_epi32(distance, by);
      quotient = _mm512_sub_epi32(high, _mm512_alignr_epi32(high, before, 15));
      before = high;
    }
    lows.to = pack_lows(_mm512_and_si512(distance, mask), l, lows.to);
    const bool large = _mm512_cmpgt_epu32_mask(quotient, _mm512_set1_epi32(13)) != 0;
    if (__builtin_expect(!large && join_unary(quotient, unary), 1)) continue;
    alignas(64) std::uint32_t quotients[16];
    _mm512_store_si512(quotients, quotient);
    for (const std::uint32_t q : quotients) unary.append_unary(q);
  }
  return i;
}

#endif

// Write the low bits and the unary quotients of a block. Both streams have room for kSlack bytes
// more than they take.
template <bool kGaps, class I>
PAROPT_TARGET void encode_block(const I* indices, std::size_t count, std::uint64_t start,
                                unsigned l, std::uint8_t* lows, std::uint8_t* unary) {
  BitWriter low_writer{lows}, unary_writer{unary};
  std::size_t i = 0;
#if PAROPT_LEVEL == 2
  if constexpr (sizeof(I) == 4) {
    if (l < 16) {
      i = encode_groups<kGaps>(indices, count, static_cast<std::uint32_t>(start), l, low_writer,
                               unary_writer);
    }
  }
#endif
  encode_rest<kGaps>(indices, i, count, start, l, low_writer, unary_writer);
}

PAROPT_TARGET std::size_t count_ones(const std::uint8_t* bytes, std::size_t size) {
  std::size_t ones = 0, i = 0;
  for (; i + 8 <= size; i += 8) ones += __builtin_popcountll(load<std::uint64_t>(bytes + i));
  for (; i < size; ++i) ones += __builtin_popcount(bytes[i]);
  return ones;
}

#if PAROPT_LEVEL == 2

// List the positions of the ones among at most 8184 bits; writes up to 64 past the list. The bytes
// are readable for a whole word past their last one.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t list_ones16(const std::uint8_t* bytes,
                                                           std::size_t size, std::uint16_t* out) {
  const std::uint16_t* begin = out;
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word = load<std::uint64_t>(bytes + i);
    if (size - i < 8) word &= (std::uint64_t{1} << (8 * (size - i))) - 1;
    out = append_ones<false>(word, 8 * i, out);
  }
  return static_cast<std::size_t>(out - begin);
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE __m512i prefix_sums(__m512i x) {
  const __m512i zero = _mm512_setzero_si512();
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 15));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 14));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 12));
  return _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 8));
}

// For l <= 25 the bits of a number lie within 4 bytes: gather these for 16 numbers at once, shift
// and mask. Writes whole groups of 16.
template <bool kGaps>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void decode_groups(const std::uint8_t* lows,
                                                      const std::uint16_t* ones, std::size_t count,
                                                      std::uint32_t start, unsigned l,
                                                      std::uint32_t* out) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i bit = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(l)));
  const __m512i byte = _mm512_mullo_epi32(_mm512_srli_epi32(bit, 3), _mm512_set1_epi32(0x01010101));
  const __m512i bytes = _mm512_add_epi8(byte, _mm512_set1_epi32(0x03020100));
  const __m512i shifts = _mm512_and_si512(bit, _mm512_set1_epi32(7));
  const __m512i mask = _mm512_set1_epi32(static_cast<int>((1u << l) - 1));
  const __m512i last = _mm512_set1_epi32(15), sixteen = _mm512_set1_epi32(16);
  const __m128i by = _mm_cvtsi32_si128(static_cast<int>(l));
  __m512i before = lanes;  // ones that stand before each number
  __m512i base = _mm512_set1_epi32(static_cast<int>(start));
  for (std::size_t i = 0; i < count; i += 16) {
    __m512i low = _mm512_permutexvar_epi8(bytes, _mm512_loadu_si512(lows));
    low = _mm512_and_si512(_mm512_srlv_epi32(low, shifts), mask);
    const __m512i one =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(ones + i)));
    const __m512i high = _mm512_sll_epi32(_mm512_sub_epi32(one, before), by);
    __m512i index;
    if (kGaps) {
      const __m512i sums = prefix_sums(low);
      index = _mm512_add_epi32(_mm512_add_epi32(high, before), _mm512_add_epi32(base, sums));
      base = _mm512_add_epi32(base, _mm512_permutexvar_epi32(last, sums));
    } else {
      index = _mm512_add_epi32(_mm512_or_si512(high, low), base);
    }
    _mm512_storeu_si512(out + i, index);
    before = _mm512_add_epi32(before, sixteen);
    lows += 2 * l;
  }
}

#endif

// Decode a block whose unary stream holds exactly `count` ones, and return the position after its
// last index. Both streams are readable for kSlack bytes past their last bit, and `out` has room
// for as many entries. With kGaps the low bits are those of gaps, else of distances from `start`.
template <bool kGaps, class I>
PAROPT_TARGET std::uint64_t decode_block(const std::uint8_t* lows, const std::uint8_t* unary,
                                         std::size_t unary_bytes, std::size_t count,
                                         std::uint64_t start, unsigned l, I* out) {
#if PAROPT_LEVEL == 2
  if constexpr (sizeof(I) == 4) {
    // Sums modulo 2^32 would hide an index beyond it.
    const std::uint64_t most = (std::uint64_t{unary_bytes} * 8 + count) << l;
    if (l <= 25 && start + most < std::uint64_t{1} << 32) {
      std::uint16_t ones[kBlock + kSlack];
      list_ones16(unary, unary_bytes, ones);
      decode_groups<kGaps>(lows, ones, count, static_cast<std::uint32_t>(start), l, out);
      return std::uint64_t{out[count - 1]} + 1;
    }
  }
#else
  (void)unary_bytes;
#endif
  const std::uint64_t mask = (std::uint64_t{1} << l) - 1;
  std::uint64_t word = load<std::uint64_t>(unary);
  std::uint64_t word_first = 0, past = 0;  // in the unary stream: bit 0 of word, after the last one
  std::uint64_t index = 0, low_bit = 0, high = 0;
  for (std::size_t i = 0; i < count; ++i) {
    while (word == 0) {
      unary += 8;
      word_first += 64;
      word = load<std::uint64_t>(unary);
    }
    const std::uint64_t one = word_first + static_cast<unsigned>(__builtin_ctzll(word));
    word &= word - 1;
    const std::uint64_t low = load<std::uint64_t>(lows + (low_bit >> 3)) >> (low_bit & 7) & mask;
    low_bit += l;
    high = (kGaps ? 0 : high) + (one - past);
    index = start + (high << l) + low;
    past = one + 1;
    if (kGaps) start = index + 1;
    out[i] = static_cast<I>(index);
  }
  return index + 1;
}

// Positions of the ones among at most kBlock / 8 bytes of a bitmap, which are readable for kSlack
// bytes more; `first` is the position of the first bit, and `out` has room for kSlack more.
template <class I>
PAROPT_TARGET std::size_t list_ones(const std::uint8_t* bytes, std::size_t size,
                                    std::uint64_t first, I* out) {
#if PAROPT_LEVEL == 2
  std::uint16_t ones[kBlock + kSlack];
  const std::size_t count = list_ones16(bytes, size, ones);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<I>(first + ones[i]);
  return count;
#else
  std::size_t found = 0;
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, size - i < 8 ? size - i : 8);
    for (; word != 0; word &= word - 1) {
      out[found++] = static_cast<I>(first + 8 * i + static_cast<unsigned>(__builtin_ctzll(word)));
    }
  }
  return found;
#endif
}

// Set bits of a bitmap that is zero on entry. To collect the bits of a byte first would take a
// branch that no processor foresees.
template <class I>
PAROPT_TARGET void set_ones(const I* indices, std::size_t k, std::uint8_t* bytes) {
  for (std::size_t i = 0; i < k; ++i) {
    bytes[indices[i] >> 3] |= static_cast<std::uint8_t>(1u << (indices[i] & 7));
  }
}

template <class T>
PAROPT_TARGET void add_block(T* __restrict dense, const T* __restrict values, std::size_t count,
                             T scale) {
  for (std::size_t i = 0; i < count; ++i) dense[i] += scale * values[i];
}
