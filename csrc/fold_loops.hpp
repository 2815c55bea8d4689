// The loops of fold.cpp; see foreach_isa.hpp.

PAROPT_TARGET inline float widened(Float16 x) { return to_float(x); }
PAROPT_TARGET inline float widened(BFloat16 x) { return to_float(x); }
PAROPT_TARGET inline float widened(float x) { return x; }
PAROPT_TARGET inline double widened(double x) { return x; }
PAROPT_TARGET inline std::int32_t widened(std::int32_t x) { return x; }
PAROPT_TARGET inline std::int64_t widened(std::int64_t x) { return x; }

PAROPT_TARGET inline void put(Float16* out, float x) { *out = rounded<Float16>(x); }
PAROPT_TARGET inline void put(BFloat16* out, float x) { *out = rounded<BFloat16>(x); }

PAROPT_TARGET inline float plus(float a, float b) { return a + b; }
PAROPT_TARGET inline double plus(double a, double b) { return a + b; }
PAROPT_TARGET inline std::int32_t plus(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
PAROPT_TARGET inline std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// out = received op own, for inputs that are still narrow or already wide. The output may be the
// own input: the loops carry nothing from one element to the next, which ivdep tells the compiler.
template <class A, class T, class U>
PAROPT_TARGET inline void combine(Op op, A* out, const T* own, const U* received, std::size_t n) {
  if (op == Op::min) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) {
      const A a = widened(own[i]), b = widened(received[i]);
      out[i] = b < a || b != b ? b : a;
    }
  } else if (op == Op::max) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) {
      const A a = widened(own[i]), b = widened(received[i]);
      out[i] = b > a || b != b ? b : a;
    }
  } else {
#pragma GCC ivdep
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

// Store one block of a result to `out`, of which the first `streamed` go past the caches.
template <class T>
PAROPT_TARGET inline void store_block(const T* block, T* const* out, int outputs, int streamed,
                                      std::size_t at, std::size_t n) {
  for (int output = 0; output < outputs; ++output) {
    char* const to = reinterpret_cast<char*>(out[output] + at);
    if (output < streamed) {
      stream_bytes(to, reinterpret_cast<const char*>(block), n * sizeof(T));
    } else {
      std::memcpy(to, block, n * sizeof(T));
    }
  }
}

// One block of reduce(), folded and rounded in memory that stays in the L1 cache.
template <class T, class A>
PAROPT_TARGET void reduce_block(Op op, const T* const* in, int inputs, T* const* out, int outputs,
                                int streamed, std::size_t at, std::size_t n, A divisor) {
  alignas(64) A wide[kBlock];
  if (inputs == 1) {
    for (std::size_t i = 0; i < n; ++i) wide[i] = widened(in[0][at + i]);
  } else {
    combine(op, wide, in[0] + at, in[1] + at, n);
  }
  for (int input = 2; input < inputs; ++input) combine(op, wide, wide, in[input] + at, n);
  if (divisor != A{1}) divide_all(wide, n, divisor);
  if constexpr (sizeof(A) == sizeof(T)) {
    store_block(wide, out, outputs, streamed, at, n);
  } else {
    alignas(64) T block[kBlock];
    for (std::size_t i = 0; i < n; ++i) put(block + i, wide[i]);
    store_block(block, out, outputs, streamed, at, n);
  }
}
