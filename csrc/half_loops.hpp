// The loops of quantize.cpp for floats of 16 bits; see foreach_isa.hpp.

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

// Write the halves of a group and return its largest key: the halves are right where this is below
// Range<Half>::kBeyond.
template <class Half>
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint32_t encode_half(const float* x,
                                                             std::uint8_t* __restrict out) {
#if PAROPT_LEVEL == 2
  const __m512i one = _mm512_set1_epi32(1), below = _mm512_set1_epi32(0x7fff);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();
  for (std::size_t i = 0; i < kGroup; i += 16) {
    const __m512i bits = _mm512_loadu_si512(x + i);
    most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
    __m256i halves;
    if constexpr (std::is_same_v<Half, Float16>) {
      halves = _mm512_cvtps_ph(_mm512_castsi512_ps(bits), _MM_FROUND_TO_NEAREST_INT);
    } else {
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
      const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, below), odd);
      halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i), halves);
  }
  return _mm512_reduce_max_epu32(most);
#else
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
  return largest_key(x);
#endif
}

// The halves of any group: a finite value that would round to infinity saturates.
template <class Half>
PAROPT_TARGET void encode_wild_half(const float* x, std::uint8_t* out, QuantizeCounts& counts) {
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

// Quantise at most kBatch values; whole groups of halves are written.
template <class Half>
PAROPT_TARGET QuantizeCounts quantize_half(const float* values, float* residual, std::size_t count,
                                           std::uint8_t* out) {
  alignas(64) float room[kGroup], sent[kGroup];
  QuantizeCounts counts;
  for (std::size_t first = 0; first < count; first += kGroup, out += 2 * kGroup) {
    const std::size_t part = count - first < kGroup ? count - first : kGroup;
    float* rest = residual == nullptr ? nullptr : residual + first;
    const float* acc = accumulate(values + first, rest, part, room);
    const std::uint32_t most = encode_half<Half>(acc, out);
    if (__builtin_expect(most >= Range<Half>::kBeyond, 0)) {
      encode_wild_half<Half>(acc, out, counts);
    }
    if (rest == nullptr) continue;
    dequantize_half<Half>(out, kGroup, sent);
    keep(acc, sent, part, rest);
  }
  return counts;
}
