// The loops of quantize.cpp for floats of 16 bits; see foreach_isa.hpp. Each value is read once and
// its half written where it belongs, since these loops do little else than move memory.

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

#if PAROPT_LEVEL == 2

// A finite value that would round to infinity saturates, and a NaN becomes quiet.
template <class Half>
PAROPT_TARGET __m512 tamed(__m512 x, __mmask16 beyond, __mmask16 finite, QuantizeCounts& counts) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0x80000000)));
  const __m512i largest =
      _mm512_or_si512(sign, _mm512_set1_epi32(static_cast<int>(Range<Half>::kLargest)));
  const auto saturated = static_cast<__mmask16>(beyond & finite);
  counts.saturated += static_cast<std::size_t>(__builtin_popcount(saturated));
  counts.nonfinite += static_cast<std::size_t>(__builtin_popcount(static_cast<__mmask16>(~finite)));
  const __m512i tame = _mm512_mask_mov_epi32(bits, saturated, largest);
  if constexpr (std::is_same_v<Half, Float16>) return _mm512_castsi512_ps(tame);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(sign, _mm512_set1_epi32(0x7fc00000));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(tame, nan, quiet));
}

template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE __m256i halves_of(__m512 x) {
  if constexpr (std::is_same_v<Half, Float16>) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  }
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}

template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE __m512 floats_of(__m256i halves) {
  if constexpr (std::is_same_v<Half, Float16>) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// The halves of 16 values; with a residual, of residual + values, and it keeps what they lose.
template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE __m256i encode_half16(const float* x, float* residual,
                                                         QuantizeCounts& counts) {
  __m512 acc = _mm512_loadu_ps(x);
  if (residual != nullptr) acc = _mm512_add_ps(_mm512_loadu_ps(residual), acc);
  const __m512i key = _mm512_and_si512(_mm512_castps_si512(acc), _mm512_set1_epi32(0x7fffffff));
  const __mmask16 beyond =
      _mm512_cmpge_epu32_mask(key, _mm512_set1_epi32(static_cast<int>(Range<Half>::kBeyond)));
  __mmask16 finite = 0xffff;
  __m512 tame = acc;
  if (__builtin_expect(beyond != 0, 0)) {
    finite = _mm512_cmplt_epu32_mask(key, _mm512_set1_epi32(FloatBits<float>::kInfinity));
    tame = tamed<Half>(acc, beyond, finite, counts);
  }
  const __m256i halves = halves_of<Half>(tame);
  if (residual != nullptr) {
    _mm512_storeu_ps(residual, _mm512_maskz_sub_ps(finite, acc, floats_of<Half>(halves)));
  }
  return halves;
}

// Write the halves of a group, past the caches when that is asked for: `out` is then aligned to a
// cache line.
template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void encode_half(const float* x, float* residual,
                                                    std::uint8_t* out, bool stream,
                                                    QuantizeCounts& counts) {
  for (std::size_t i = 0; i < kGroup; i += 32, out += 64) {
    float* rest = residual == nullptr ? nullptr : residual + i;
    for (std::size_t j = 0; stream && rest != nullptr && j < 32; j += 16) {
      fetch_ahead(x + i + j);
      fetch_ahead(rest + j);
    }
    const __m256i low = encode_half16<Half>(x + i, rest, counts);
    if (rest != nullptr) rest += 16;
    const __m256i high = encode_half16<Half>(x + i + 16, rest, counts);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    if (stream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out), both);
    } else {
      _mm512_storeu_si512(out, both);
    }
  }
}

#else

template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void halves_of(const float* x, std::uint8_t* __restrict out) {
  for (std::size_t i = 0; i < kGroup; i += 8) {
#if PAROPT_LEVEL == 1
    if constexpr (std::is_same_v<Half, Float16>) {
      const __m128i eight = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), eight);
      continue;
    }
#endif
    for (std::size_t j = i; j < i + 8; ++j) store(out + 2 * j, rounded<Half>(x[j]).bits);
  }
}

// The halves of any group: a finite value that would round to infinity saturates.
template <class Half>
PAROPT_TARGET void tamed_halves_of(const float* x, std::uint8_t* out, QuantizeCounts& counts) {
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::uint32_t key = key_of(x[i]);
    const bool finite = key < FloatBits<float>::kInfinity;
    const bool beyond = finite && key >= Range<Half>::kBeyond;
    counts.saturated += beyond;
    counts.nonfinite += !finite;
    const float largest = float_of(Range<Half>::kLargest | (bits_of(x[i]) & 0x80000000));
    store(out + 2 * i, rounded<Half>(beyond ? largest : x[i]).bits);
  }
}

// The same in steps.
template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void encode_half(const float* x, float* residual,
                                                    std::uint8_t* out, bool stream,
                                                    QuantizeCounts& counts) {
  alignas(64) float room[kGroup], sent[kGroup];
  alignas(64) std::uint8_t halves[2 * kGroup];
  const float* acc = accumulate(x, residual, kGroup, room);
  if (largest_key(acc) < Range<Half>::kBeyond) {
    halves_of<Half>(acc, halves);
  } else {
    tamed_halves_of<Half>(acc, halves, counts);
  }
  if (stream) {
    stream_bytes(out, halves, sizeof halves);
  } else {
    std::memcpy(out, halves, sizeof halves);
  }
  if (residual == nullptr) return;
  dequantize_half<Half>(halves, kGroup, sent);
  keep(acc, sent, kGroup, residual);
}

#endif

// Less than a group, padded.
template <class Half>
PAROPT_TARGET void encode_half_part(const float* x, float* residual, std::size_t count,
                                    std::uint8_t* out, QuantizeCounts& counts) {
  float values[kGroup] = {}, rest[kGroup] = {};
  std::uint8_t halves[2 * kGroup];
  std::memcpy(values, x, count * sizeof(float));
  if (residual != nullptr) std::memcpy(rest, residual, count * sizeof(float));
  encode_half<Half>(values, residual == nullptr ? nullptr : rest, halves, false, counts);
  std::memcpy(out, halves, 2 * count);
  if (residual != nullptr) std::memcpy(residual, rest, count * sizeof(float));
}

// Quantise `count` values, past the caches when that is asked for. Groups begin where a cache line
// of `out` does, wherever halves can: no store then touches two lines.
template <class Half>
PAROPT_TARGET QuantizeCounts quantize_half(const float* values, float* residual, std::size_t count,
                                           std::uint8_t* out, bool stream) {
  const std::size_t to_line = -reinterpret_cast<std::uintptr_t>(out) % 64;
  const bool even = to_line % 2 == 0;
  stream = stream && even;
  QuantizeCounts counts;
  std::size_t part = even && to_line > 0 ? to_line / 2 : kGroup;
  for (std::size_t first = 0; first < count; first += part, part = kGroup) {
    part = std::min(part, count - first);
    float* rest = residual == nullptr ? nullptr : residual + first;
    if (part == kGroup) {
      encode_half<Half>(values + first, rest, out + 2 * first, stream, counts);
    } else {
      encode_half_part<Half>(values + first, rest, part, out + 2 * first, counts);
    }
  }
  return counts;
}
