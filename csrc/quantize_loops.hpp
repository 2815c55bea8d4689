// The loops of quantize.cpp; see foreach_isa.hpp. A group is the values that share a scale; what is
// short of a whole one is padded with zeros.

// The largest key of a group.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint32_t largest_key(const float* x) {
#if PAROPT_LEVEL == 2
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most[4] = {};
  for (std::size_t i = 0; i < kGroup; i += 64) {
    for (std::size_t j = 0; j < 4; ++j) {
      const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + i + 16 * j), magnitude);
      most[j] = _mm512_max_epu32(most[j], key);
    }
  }
  most[0] =
      _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3]));
  return _mm512_reduce_max_epu32(most[0]);
#else
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::uint32_t key = key_of(x[i]);
    most = key > most ? key : most;
  }
  return most;
#endif
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint32_t count_nonfinite(const float* x) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < kGroup; ++i) found += key_of(x[i]) >= FloatBits<float>::kInfinity;
  return found;
}

// The sum of magnitudes in an order that every instruction set can follow: 16 sums side by side,
// which are then added in halves. The group is padded with zeros.
PAROPT_TARGET PAROPT_ALWAYS_INLINE float sum_magnitudes(const float* x, float by) {
  float sums[16] = {};
  for (std::size_t i = 0; i < kGroup; i += 16) {
    for (std::size_t j = 0; j < 16; ++j) sums[j] += float_of(key_of(x[i + j])) * by;
  }
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// The mean magnitude of a group of finite values, NaN for others.
PAROPT_TARGET PAROPT_ALWAYS_INLINE float mean_magnitude(const float* x, std::size_t count) {
  const float mean = sum_magnitudes(x, 1) / static_cast<float>(count);
  if (__builtin_expect(key_of(mean) < FloatBits<float>::kInfinity, 1)) return mean;
  if (largest_key(x) >= FloatBits<float>::kInfinity) return float_of(0x7fc00000);
  // The sum of 256 is too large a number, the mean of them is none.
  const float small = sum_magnitudes(x, 0x1p-8f) / static_cast<float>(count);
  return small < 0x1p120f ? small * 0x1p8f : float_of(0x7f7fffff);
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE void keep(const float* acc, const float* __restrict sent,
                                             std::size_t count, float* __restrict residual) {
  if (count == kGroup) {
    for (std::size_t i = 0; i < kGroup; ++i) residual[i] = kept(acc[i], sent[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) residual[i] = kept(acc[i], sent[i]);
  }
}

// acc = values, or residual + values, padded; whole groups of values are taken where they are.
PAROPT_TARGET PAROPT_ALWAYS_INLINE const float* accumulate(const float* __restrict values,
                                                           const float* __restrict residual,
                                                           std::size_t count,
                                                           float* __restrict room) {
  for (std::size_t i = 0; i < kGroup; i += 16) {
    fetch_ahead(values + i);
    if (residual != nullptr) fetch_ahead(residual + i);
  }
  if (residual == nullptr && count == kGroup) return values;
  if (count == kGroup) {
    for (std::size_t i = 0; i < kGroup; ++i) room[i] = residual[i] + values[i];
    return room;
  }
  for (std::size_t i = 0; i < kGroup; ++i) {
    room[i] = i >= count ? 0 : residual == nullptr ? values[i] : residual[i] + values[i];
  }
  return room;
}

// Encode a group as int8 and return its scale.
PAROPT_TARGET PAROPT_ALWAYS_INLINE float encode_int8(const float* x,
                                                     std::uint8_t* __restrict codes) {
#if PAROPT_LEVEL == 2
  // The group stays in registers from the search for its scale to its codes.
  __m512 group[kGroup / 16];
  __m512i most[4] = {};
  for (std::size_t i = 0; i < kGroup / 16; ++i) {
    group[i] = _mm512_loadu_ps(x + 16 * i);
    const __m512i bits = _mm512_castps_si512(group[i]);
    const __m512i key = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    most[i % 4] = _mm512_max_epu32(most[i % 4], key);
  }
  most[0] =
      _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3]));
  const float scale = scale_for(_mm512_reduce_max_epu32(most[0]), 127, 0x1p-126f);
#else
  const float scale = scale_for(largest_key(x), 127, 0x1p-126f);
#endif
  if (!(scale > 0)) {
    std::memset(codes, 0, kGroup);
    return scale;
  }
  const float by = 1 / scale;
#if PAROPT_LEVEL == 2
  const __m512 times = _mm512_set1_ps(by), round = _mm512_set1_ps(0x1.8p23f);
  // Bytes 0, 4, 8, ... of two vectors.
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i lowest = _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x10101010)),
                                          _mm512_set1_epi32(0x0c080400));
  for (std::size_t i = 0; i < kGroup / 16; i += 4) {
    __m512i code[4];
    for (std::size_t j = 0; j < 4; ++j) {
      code[j] = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(group[i + j], times), round));
    }
    const __m512i low = _mm512_permutex2var_epi8(code[0], lowest, code[1]);
    const __m512i high = _mm512_permutex2var_epi8(code[2], lowest, code[3]);
    _mm512_storeu_si512(codes + 16 * i, _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1));
  }
#else
  for (std::size_t i = 0; i < kGroup; ++i) codes[i] = static_cast<std::uint8_t>(nearest(x[i] * by));
#endif
  return scale;
}

#if PAROPT_LEVEL == 2

// 16 counters at once.
PAROPT_TARGET PAROPT_ALWAYS_INLINE __m512i mixed(__m512i x) {
  const __m512i first = _mm512_set1_epi32(static_cast<int>(0x85ebca6b));
  const __m512i second = _mm512_set1_epi32(static_cast<int>(0xc2b2ae35));
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), first);
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 13)), second);
  return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

#endif

// floor(x / scale + u) with u uniform in [0, 1) is x / scale on average: D. Alistarh et al., "QSGD:
// communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017, section 3.1,
// here with the largest magnitude as the norm. In fixed point with kQsgdUnit units to a step, of
// which 7 and a random part fill 16 bits: the mean is right to half a unit. One random word serves
// two values.
PAROPT_TARGET PAROPT_ALWAYS_INLINE void encode_qsgd4(const float* x, float by, std::uint32_t random,
                                                     std::uint8_t* __restrict codes) {
#if PAROPT_LEVEL == 2
  const __m512 times = _mm512_set1_ps(by);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(kGolden));
  __m512i counter = _mm512_add_epi32(_mm512_mullo_epi32(lanes, factor),
                                     _mm512_set1_epi32(static_cast<int>(random)));
  const __m512i stride = _mm512_set1_epi32(static_cast<int>(16 * kGolden));
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xf0000000));
  // Words 0, 2, 4, ... of two vectors, and bytes 3, 7, 11, ... of one.
  const __m512i even_words = _mm512_add_epi32(
      _mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x00040004)), _mm512_set1_epi32(0x00020000));
  const __m512i upper_bytes = _mm512_add_epi32(
      _mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x10101010)), _mm512_set1_epi32(0x0f0b0703));
  for (std::size_t i = 0; i < kGroup; i += 32) {
    const __m512i word = mixed(counter);
    counter = _mm512_add_epi32(counter, stride);
    const __m512i low_half = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), times));
    const __m512i high_half = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16), times));
    __m512i units = _mm512_permutex2var_epi16(low_half, even_words, high_half);
    units = _mm512_add_epi16(units, _mm512_srli_epi16(word, 4));
    // The code is the upper four bits of 16; two meet in the upper byte of 32.
    const __m512i both = _mm512_ternarylogic_epi32(high, units, _mm512_slli_epi32(units, 12), 0xca);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i / 2),
                     _mm512_castsi512_si128(_mm512_permutexvar_epi8(upper_bytes, both)));
  }
#else
  alignas(64) std::uint32_t words[kGroup / 2];
  alignas(64) std::uint16_t units[kGroup], noise[kGroup];
  for (std::uint32_t i = 0; i < kGroup / 2; ++i) words[i] = mixed(random + i * kGolden);
  std::memcpy(noise, words, sizeof noise);
  for (std::size_t i = 0; i < kGroup; ++i) {
    const auto unit = static_cast<std::uint16_t>(nearest(x[i] * by));
    units[i] = static_cast<std::uint16_t>(unit + (noise[i] >> 4));
  }
  std::memcpy(words, units, sizeof words);
  for (std::size_t i = 0; i < kGroup / 2; ++i) {
    codes[i] = static_cast<std::uint8_t>((words[i] >> 12 & 0x0f) | (words[i] >> 24 & 0xf0));
  }
#endif
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE void encode_sign(const float* x,
                                                    std::uint8_t* __restrict codes) {
#if PAROPT_LEVEL == 2
  for (std::size_t i = 0; i < kGroup; i += 16) {
    const __mmask16 minus = _mm512_movepi32_mask(_mm512_loadu_si512(x + i));
    store(codes + i / 8, static_cast<std::uint16_t>(minus));
  }
#elif PAROPT_LEVEL == 1
  for (std::size_t i = 0; i < kGroup; i += 8) {
    codes[i / 8] = static_cast<std::uint8_t>(_mm256_movemask_ps(_mm256_loadu_ps(x + i)));
  }
#else
  for (std::size_t i = 0; i < kGroup; i += 8) {
    unsigned byte = 0;
    for (std::size_t j = 0; j < 8; ++j) byte |= (bits_of(x[i + j]) >> 31) << j;
    codes[i / 8] = static_cast<std::uint8_t>(byte);
  }
#endif
}

// Read codes [first, first + count) that share one scale.
PAROPT_TARGET void dequantize_int8(const std::uint8_t* codes, std::size_t first, std::size_t count,
                                   float scale, float* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<std::int8_t>(codes[first + i])) * scale;
  }
}

PAROPT_TARGET void dequantize_qsgd4(const std::uint8_t* codes, std::size_t first, std::size_t count,
                                    float scale, float* __restrict out) {
  std::size_t i = 0;
#if PAROPT_LEVEL == 2
  const __m128i low = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
  for (; first % 2 == 0 && i + 16 <= count; i += 16) {
    const auto* from = reinterpret_cast<const __m128i*>(codes + (first + i) / 2);
    const __m128i bytes = _mm_loadl_epi64(from);
    __m128i code =
        _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    code = _mm_sub_epi8(_mm_xor_si128(code, eight), eight);
    const __m512 steps = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(code));
    _mm512_storeu_ps(out + i, _mm512_mul_ps(steps, _mm512_set1_ps(scale)));
  }
#elif PAROPT_LEVEL == 1
  // The code of each lane is moved to the top of 32 bits, whence its sign comes down with it.
  const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  for (; first % 2 == 0 && i + 8 <= count; i += 8) {
    const __m256i word = _mm256_set1_epi32(load<std::int32_t>(codes + (first + i) / 2));
    const __m256 steps = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sllv_epi32(word, up), 28));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(steps, _mm256_set1_ps(scale)));
  }
#endif
  for (; i < count; ++i) {
    const unsigned nibble = codes[(first + i) / 2] >> (4 * ((first + i) & 1)) & 15u;
    out[i] = static_cast<float>(static_cast<int>(nibble ^ 8) - 8) * scale;
  }
}

PAROPT_TARGET void dequantize_sign(const std::uint8_t* codes, std::size_t first, std::size_t count,
                                   float scale, float* __restrict out) {
  std::size_t i = 0;
#if PAROPT_LEVEL == 2
  const __m512i plus = _mm512_set1_epi32(static_cast<int>(bits_of(scale)));
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000));
  for (; first % 8 == 0 && i + 16 <= count; i += 16) {
    const __mmask16 minus = load<std::uint16_t>(codes + (first + i) / 8);
    _mm512_storeu_si512(out + i, _mm512_mask_xor_epi32(plus, minus, plus, sign));
  }
#elif PAROPT_LEVEL == 1
  // The bit of each lane is moved to the top of 32 bits.
  const __m256i up = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000));
  const __m256i plus = _mm256_set1_epi32(static_cast<int>(bits_of(scale)));
  for (; first % 8 == 0 && i + 8 <= count; i += 8) {
    const __m256i byte = _mm256_set1_epi32(codes[(first + i) / 8]);
    const __m256i minus = _mm256_and_si256(_mm256_sllv_epi32(byte, up), sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_xor_si256(plus, minus));
  }
#endif
  for (; i < count; ++i) {
    const std::uint32_t minus = codes[(first + i) / 8] >> ((first + i) & 7) & 1u;
    out[i] = float_of(bits_of(scale) ^ minus << 31);
  }
}

// Encode a group and return its scale.
template <ValueType kType>
PAROPT_TARGET PAROPT_ALWAYS_INLINE float encode_group(const float* x, std::size_t count,
                                                      std::uint32_t random, std::uint8_t* codes) {
  if constexpr (kType == ValueType::sign) {
    encode_sign(x, codes);
    return mean_magnitude(x, count);
  }
  if constexpr (kType == ValueType::int8) return encode_int8(x, codes);
  const float scale = scale_for(largest_key(x), 7, kLeastQsgdScale);
  if (scale > 0) {
    encode_qsgd4(x, kQsgdUnit / scale, random, codes);
  } else {
    std::memset(codes, 0, kGroup / 2);
  }
  return scale;
}

// What the code of a finite value says; by = 1 / scale.
template <ValueType kType>
PAROPT_TARGET PAROPT_ALWAYS_INLINE float sent_for(float acc, float scale, float by) {
  if (kType == ValueType::sign) return float_of(bits_of(scale) | (bits_of(acc) & 0x80000000));
  return (acc * by + 0x1.8p23f - 0x1.8p23f) * scale;  // to nearest, as encode_int8 does it
}

// Leave in the residual what the codes of a group do not say; where its scale is NaN, that is all
// that is finite.
template <ValueType kType>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void keep_group(const float* acc, std::size_t count, float scale,
                                                   const std::uint8_t* codes,
                                                   float* __restrict residual) {
  if (scale != scale) {
    for (std::size_t i = 0; i < count; ++i) residual[i] = kept(acc[i], 0);
  } else if (kType == ValueType::qsgd4) {
    alignas(64) float sent[kGroup];
    dequantize_qsgd4(codes, 0, kGroup, scale, sent);
    for (std::size_t i = 0; i < count; ++i) residual[i] = acc[i] - sent[i];
  } else {
    const float by = scale > 0 ? 1 / scale : 0;
    for (std::size_t i = 0; i < count; ++i) {
      residual[i] = acc[i] - sent_for<kType>(acc[i], scale, by);
    }
  }
}

// Quantise at most kBatch values; whole groups of codes are written.
template <ValueType kType>
PAROPT_TARGET QuantizeCounts quantize_scaled(const float* values, float* residual,
                                             std::size_t count, std::uint64_t seed,
                                             std::uint64_t group, std::uint8_t* scales,
                                             std::uint8_t* codes) {
  alignas(64) float room[kGroup];
  QuantizeCounts counts;
  for (std::size_t first = 0; first < count; first += kGroup, ++group) {
    const std::size_t part = count - first < kGroup ? count - first : kGroup;
    float* rest = residual == nullptr ? nullptr : residual + first;
    const float* acc = accumulate(values + first, rest, part, room);
    const std::uint32_t random = kType == ValueType::qsgd4 ? group_random(seed, group) : 0;
    const float scale = encode_group<kType>(acc, part, random, codes);
    store(scales, scale);
    if (scale != scale) counts.nonfinite += count_nonfinite(acc);
    if (rest != nullptr) keep_group<kType>(acc, part, scale, codes, rest);
    scales += sizeof(float);
    codes += kType == ValueType::int8    ? kGroup
             : kType == ValueType::qsgd4 ? kGroup / 2
                                         : kGroup / 8;
  }
  return counts;
}
