// The loops of fold.cpp; see foreach_isa.hpp.

PAROPT_TARGET inline float widened(Half x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  // The exponent is rebiased by a product, which makes subnormals normal in the same step.
  const float scaled = from_bits<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t finite = to_bits<std::uint32_t>(scaled);
  const std::uint32_t bits = magnitude >= 0x7c00u ? magnitude << 13 | 0x7f800000u : finite;
  return from_bits<float>(bits | (x.bits & 0x8000u) << 16);
}

PAROPT_TARGET inline float widened(Bfloat16 x) {
  return from_bits<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

PAROPT_TARGET inline float widened(float x) { return x; }
PAROPT_TARGET inline double widened(double x) { return x; }
PAROPT_TARGET inline std::int32_t widened(std::int32_t x) { return x; }
PAROPT_TARGET inline std::int64_t widened(std::int64_t x) { return x; }

PAROPT_TARGET inline void put(Half* out, float x) {
  const std::uint32_t bits = to_bits<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t odd = magnitude >> 13 & 1u;
  // 0.5 has the last place of a subnormal half, so the sum rounds where the half does.
  const float shifted = from_bits<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = to_bits<std::uint32_t>(shifted) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const std::uint32_t half = magnitude >= 0x47800000u ? special : finite;
  out->bits = static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000u));
}

PAROPT_TARGET inline void put(Bfloat16* out, float x) {
  const std::uint32_t bits = to_bits<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out->bits = static_cast<std::uint16_t>(nan ? bits >> 16 | 0x40u : rounded);
}

PAROPT_TARGET inline void put(float* out, float x) { *out = x; }
PAROPT_TARGET inline void put(double* out, double x) { *out = x; }
PAROPT_TARGET inline void put(std::int32_t* out, std::int32_t x) { *out = x; }
PAROPT_TARGET inline void put(std::int64_t* out, std::int64_t x) { *out = x; }

PAROPT_TARGET inline float plus(float a, float b) { return a + b; }
PAROPT_TARGET inline double plus(double a, double b) { return a + b; }
PAROPT_TARGET inline std::int32_t plus(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
PAROPT_TARGET inline std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// out = received op own, for inputs that are still narrow or already wide.
template <class A, class T, class U>
PAROPT_TARGET inline void combine(Op op, A* out, const T* own, const U* received, std::size_t n) {
  if (op == Op::min) {
    for (std::size_t i = 0; i < n; ++i) {
      const A a = widened(own[i]), b = widened(received[i]);
      out[i] = b < a || b != b ? b : a;
    }
  } else if (op == Op::max) {
    for (std::size_t i = 0; i < n; ++i) {
      const A a = widened(own[i]), b = widened(received[i]);
      out[i] = b > a || b != b ? b : a;
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) out[i] = plus(widened(received[i]), widened(own[i]));
  }
}

template <class T>
PAROPT_TARGET void fold_all(Op op, T* own, const T* received, std::size_t n) {
  combine(op, own, own, received, n);
}

template <class T>
PAROPT_TARGET void divide_all(T* data, std::size_t n, T divisor) {
  for (std::size_t i = 0; i < n; ++i) data[i] /= divisor;
}

template <class T>
PAROPT_TARGET void widen_all(float* out, const T* in, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = widened(in[i]);
}

template <class T>
PAROPT_TARGET void narrow_all(T* out, const float* in, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) put(out + i, in[i]);
}

// Whole lines go past the caches, the ends of an unaligned range through them.
PAROPT_TARGET inline void stream_bytes(char* out, const char* in, std::size_t bytes) {
#if PAROPT_X86
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % 64;
  if (bytes < head + 64) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
#if PAROPT_LEVEL == 2
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), _mm512_loadu_si512(in + at));
#elif PAROPT_LEVEL == 1
    for (int half = 0; half < 64; half += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at + half),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at + half)));
    }
#else
    for (int quarter = 0; quarter < 64; quarter += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + at + quarter),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at + quarter)));
    }
#endif
  }
  std::memcpy(out + at, in + at, bytes - at);
#else
  std::memcpy(out, in, bytes);
#endif
}

// One block of reduce(): folded in `wide`, rounded in `block`, both of which stay in the L1 cache.
template <class T, class A>
PAROPT_TARGET void reduce_block(Op op, const T* const* in, int inputs, T* const* out, int outputs,
                                std::size_t at, std::size_t n, A divisor, bool stream) {
  alignas(64) A wide[kBlock];
  alignas(64) T block[kBlock];
  if (inputs == 1) {
    for (std::size_t i = 0; i < n; ++i) wide[i] = widened(in[0][at + i]);
  } else {
    combine(op, wide, in[0] + at, in[1] + at, n);
  }
  for (int input = 2; input < inputs; ++input) combine(op, wide, wide, in[input] + at, n);
  if (divisor != A{1}) divide_all(wide, n, divisor);
  for (std::size_t i = 0; i < n; ++i) put(block + i, wide[i]);
  for (int output = 0; output < outputs; ++output) {
    char* const to = reinterpret_cast<char*>(out[output] + at);
    if (stream) {
      stream_bytes(to, reinterpret_cast<const char*>(block), n * sizeof(T));
    } else {
      std::memcpy(to, block, n * sizeof(T));
    }
  }
}
