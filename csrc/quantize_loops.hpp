// The loops of quantize.cpp; see foreach_isa.hpp. A group is the values that share a scale.

// The largest key of a group.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint32_t largest_key(const float* x, std::size_t count) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t key = key_of(x[i]);
    most = key > most ? key : most;
  }
  return most;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint32_t count_nonfinite(const float* x,
                                                                 std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) found += key_of(x[i]) >= FloatBits<float>::kInfinity;
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

// The scale for codes up to `steps`: 0 where it would be subnormal, NaN where a value is not
// finite, and so small that no code decodes to infinity.
PAROPT_TARGET PAROPT_ALWAYS_INLINE float scale_for(std::uint32_t key, float steps) {
  if (key >= FloatBits<float>::kInfinity) return float_of(0x7fc00000);
  float scale = float_of(key) / steps;
  if (key_of(scale * steps) >= FloatBits<float>::kInfinity) scale = float_of(bits_of(scale) - 1);
  return scale < 0x1p-126f ? 0 : scale;
}

// The mean magnitude of a group of finite values, NaN for others.
PAROPT_TARGET PAROPT_ALWAYS_INLINE float mean_magnitude(const float* x, std::size_t count) {
  const float mean = sum_magnitudes(x, 1) / static_cast<float>(count);
  if (__builtin_expect(key_of(mean) < FloatBits<float>::kInfinity, 1)) return mean;
  if (largest_key(x, kGroup) >= FloatBits<float>::kInfinity) return float_of(0x7fc00000);
  // The sum of 256 is too large a number, the mean of them is none.
  const float small = sum_magnitudes(x, 0x1p-8f) / static_cast<float>(count);
  return small < 0x1p120f ? small * 0x1p8f : float_of(0x7f7fffff);
}

// What error feedback keeps of acc when `sent` goes out: nothing of a value that is not finite.
PAROPT_TARGET PAROPT_ALWAYS_INLINE float kept(float acc, float sent) {
  return key_of(acc) < FloatBits<float>::kInfinity ? acc - sent : 0;
}

// What the codes of a group are multiplied with to tell what was sent; where that was NaN, all that
// is finite is kept.
PAROPT_TARGET PAROPT_ALWAYS_INLINE float sent_scale(float scale) {
  return scale == scale ? scale : 0;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE float inverse(float scale) { return scale > 0 ? 1 / scale : 0; }

// acc = values, or residual + values, padded with zeros to a whole group.
PAROPT_TARGET PAROPT_ALWAYS_INLINE void load_group(const float* __restrict values,
                                                   const float* __restrict residual,
                                                   std::size_t count, float* __restrict acc) {
  for (std::size_t i = count; i < kGroup; ++i) acc[i] = 0;
  for (std::size_t i = 0; i < kGroup; i += 16) {
    __builtin_prefetch(values + i + kAhead);
    if (residual != nullptr) __builtin_prefetch(residual + i + kAhead);
  }
  if (residual == nullptr) {
    std::memcpy(acc, values, count * sizeof(float));
  } else {
    for (std::size_t i = 0; i < count; ++i) acc[i] = residual[i] + values[i];
  }
}

// Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::int32_t nearest(float x) {
  return static_cast<std::int32_t>(bits_of(x + 0x1.8p23f)) - 0x4b400000;
}

PAROPT_TARGET Scaled quantize_int8(const float* __restrict values, float* __restrict residual,
                                   std::size_t count, std::int8_t* __restrict codes) {
  alignas(64) float acc[kGroup];
  alignas(64) std::int32_t code[kGroup];
  load_group(values, residual, count, acc);
  const float scale = scale_for(largest_key(acc, kGroup), 127), by = inverse(scale);
  for (std::size_t i = 0; i < kGroup; ++i) code[i] = by > 0 ? nearest(acc[i] * by) : 0;
  for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(code[i]);
  const float sent = sent_scale(scale);
  for (std::size_t i = 0; residual != nullptr && i < count; ++i) {
    residual[i] = kept(acc[i], static_cast<float>(code[i]) * sent);
  }
  return {scale, scale == scale ? 0 : count_nonfinite(acc, count)};
}

// The last mixing steps of MurmurHash3 make 32 random bits of a counter.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x85ebca6b;
  x = (x ^ x >> 13) * 0xc2b2ae35;
  return x ^ x >> 16;
}

// floor(x / scale + u) with u uniform in [0, 1) is x / scale on average: D. Alistarh et al., "QSGD:
// communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017, section 3.1,
// here with the largest magnitude as the norm.
PAROPT_TARGET Scaled quantize_qsgd4(const float* __restrict values, float* __restrict residual,
                                    std::size_t count, std::uint32_t random,
                                    std::uint8_t* __restrict codes) {
  alignas(64) float acc[kGroup];
  alignas(64) std::int32_t code[kGroup];
  alignas(64) std::uint8_t bytes[kGroup / 2];
  load_group(values, residual, count, acc);
  const float scale = scale_for(largest_key(acc, kGroup), 7), by = inverse(scale);
  for (std::uint32_t i = 0; i < kGroup; ++i) {
    const std::uint32_t word = mixed(random + i * 0x9e3779b9);
    const float u = static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
    float steps = by > 0 ? acc[i] * by : 0;
    steps = steps > -7 ? steps : -7;  // a rounded inverse may lead past the last step
    const std::int32_t step = static_cast<std::int32_t>(steps + u + 8) - 8;  // a floor, as positive
    code[i] = step < 7 ? step : 7;
  }
  for (std::size_t i = 0; i < kGroup / 2; ++i) {
    bytes[i] = static_cast<std::uint8_t>((code[2 * i] & 15) | (code[2 * i + 1] & 15) << 4);
  }
  std::memcpy(codes, bytes, (count + 1) / 2);
  if (count % 2 != 0) codes[count / 2] &= 15;
  const float sent = sent_scale(scale);
  for (std::size_t i = 0; residual != nullptr && i < count; ++i) {
    residual[i] = kept(acc[i], static_cast<float>(code[i]) * sent);
  }
  return {scale, scale == scale ? 0 : count_nonfinite(acc, count)};
}

PAROPT_TARGET Scaled quantize_sign(const float* __restrict values, float* __restrict residual,
                                   std::size_t count, std::uint8_t* __restrict codes) {
  alignas(64) float acc[kGroup];
  load_group(values, residual, count, acc);
  const float scale = mean_magnitude(acc, count);
  std::uint8_t bytes[kGroup / 8];
#if PAROPT_LEVEL == 2
  for (std::size_t i = 0; i < kGroup; i += 16) {
    const __mmask16 minus = _mm512_movepi32_mask(_mm512_load_si512(acc + i));
    store(bytes + i / 8, static_cast<std::uint16_t>(minus));
  }
#elif PAROPT_LEVEL == 1
  for (std::size_t i = 0; i < kGroup; i += 8) {
    bytes[i / 8] = static_cast<std::uint8_t>(_mm256_movemask_ps(_mm256_load_ps(acc + i)));
  }
#else
  for (std::size_t i = 0; i < kGroup; i += 8) {
    unsigned byte = 0;
    for (std::size_t j = 0; j < 8; ++j) byte |= (bits_of(acc[i + j]) >> 31) << j;
    bytes[i / 8] = static_cast<std::uint8_t>(byte);
  }
#endif
  std::memcpy(codes, bytes, (count + 7) / 8);
  const std::uint32_t sent = bits_of(sent_scale(scale));
  for (std::size_t i = 0; residual != nullptr && i < count; ++i) {
    residual[i] = kept(acc[i], float_of(sent | (bits_of(acc[i]) & 0x80000000)));
  }
  return {scale, scale == scale ? 0 : count_nonfinite(acc, count)};
}

// Keys as float32: the least that rounds to infinity, and the largest finite one.
template <class Half>
struct Range;

template <>
struct Range<Float16> {
  static constexpr std::uint32_t kBeyond = 0x477ff000, kLargest = 0x477fe000;  // 65520, 65504
};

template <>
struct Range<BFloat16> {
  static constexpr std::uint32_t kBeyond = 0x7f7f8000, kLargest = 0x7f7f0000;
};

// Saturate a finite value that would round to infinity; `over` counts them.
template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE float saturated(float x, std::uint32_t& over) {
  const std::uint32_t key = key_of(x);
  const bool beyond = key >= Range<Half>::kBeyond && key < FloatBits<float>::kInfinity;
  over += beyond;
  return beyond ? float_of(Range<Half>::kLargest | (bits_of(x) & 0x80000000)) : x;
}

// Half-precision of a group; the residual and the padding as above.
template <class Half>
PAROPT_TARGET QuantizeCounts quantize_half(const float* __restrict values,
                                           float* __restrict residual, std::size_t count,
                                           std::uint8_t* __restrict out) {
  alignas(64) float acc[kGroup];
  alignas(64) Half codes[kGroup];
  std::uint32_t over = 0;
  load_group(values, residual, count, acc);
  alignas(64) float inside[kGroup];
  for (std::size_t i = 0; i < kGroup; ++i) inside[i] = saturated<Half>(acc[i], over);
#if PAROPT_LEVEL > 0
  if constexpr (std::is_same_v<Half, Float16>) {
    for (std::size_t i = 0; i < kGroup; i += 8) {
      const __m128i eight = _mm256_cvtps_ph(_mm256_load_ps(inside + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_store_si128(reinterpret_cast<__m128i*>(codes + i), eight);
    }
  } else
#endif
    for (std::size_t i = 0; i < kGroup; ++i) codes[i] = rounded<Half>(inside[i]);
  std::memcpy(out, codes, count * sizeof(Half));
  for (std::size_t i = 0; residual != nullptr && i < count; ++i) {
    residual[i] = kept(acc[i], to_float(codes[i]));
  }
  return {over, count_nonfinite(acc, count)};
}

#if PAROPT_LEVEL == 2

template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE __m512i saturated(__m512 x, QuantizeCounts& counts) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i key = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 finite = _mm512_cmplt_epu32_mask(key, _mm512_set1_epi32(0x7f800000));
  const __mmask16 beyond =
      _mm512_mask_cmpge_epu32_mask(finite, key, _mm512_set1_epi32(Range<Half>::kBeyond));
  const __m512i sign = _mm512_andnot_si512(_mm512_set1_epi32(0x7fffffff), bits);
  counts.saturated += static_cast<std::size_t>(__builtin_popcount(beyond));
  counts.nonfinite += static_cast<std::size_t>(16 - __builtin_popcount(finite));
  return _mm512_mask_or_epi32(bits, beyond, sign, _mm512_set1_epi32(Range<Half>::kLargest));
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE __m256i to_half(__m512 x, Float16, QuantizeCounts& counts) {
  const __m512i inside = saturated<Float16>(x, counts);
  return _mm512_cvtps_ph(_mm512_castsi512_ps(inside), _MM_FROUND_TO_NEAREST_INT);
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE __m256i to_half(__m512 x, BFloat16, QuantizeCounts& counts) {
  const __m512i bits = saturated<BFloat16>(x, counts), high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  sum = _mm512_srli_epi32(sum, 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i sign = _mm512_and_si512(high, _mm512_set1_epi32(0x8000));
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(sum, nan, sign, _mm512_set1_epi32(0x7fc0)));
}

#endif

// The same without a residual, straight from input to output.
template <class Half>
PAROPT_TARGET QuantizeCounts convert_half(const float* values, std::size_t count,
                                          std::uint8_t* out) {
  QuantizeCounts counts;
  std::size_t i = 0;
#if PAROPT_LEVEL == 2
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = to_half(_mm512_loadu_ps(values + i), Half{}, counts);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i), halves);
  }
#endif
  for (; i < count; i += kGroup) {
    const std::size_t part = count - i < kGroup ? count - i : kGroup;
    const QuantizeCounts more = quantize_half<Half>(values + i, nullptr, part, out + 2 * i);
    counts.saturated += more.saturated;
    counts.nonfinite += more.nonfinite;
  }
  return counts;
}

template <class Half>
PAROPT_TARGET void dequantize_half(const std::uint8_t* data, std::size_t count, float* out) {
  std::size_t i = 0;
#if PAROPT_LEVEL > 0
  if constexpr (std::is_same_v<Half, Float16>) {
    for (; i + 8 <= count; i += 8) {
      const auto* eight = reinterpret_cast<const __m128i*>(data + 2 * i);
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(eight)));
    }
  }
#endif
  for (; i < count; ++i) out[i] = to_float(Half{load<std::uint16_t>(data + 2 * i)});
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
#endif
  for (; i < count; ++i) {
    const std::uint32_t minus = codes[(first + i) / 8] >> ((first + i) & 7) & 1u;
    out[i] = float_of(bits_of(scale) ^ minus << 31);
  }
}
