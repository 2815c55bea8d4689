// Stores past the caches, for outputs that these would not hold; see foreach_isa.hpp.

// memcpy of which whole lines are streamed. Before anyone is told about them: finish_streaming().
PAROPT_TARGET inline void stream_bytes(std::uint8_t* out, const std::uint8_t* in,
                                       std::size_t bytes) {
#if PAROPT_X86
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % 64;
  std::size_t at = head < bytes ? head : bytes;
  std::memcpy(out, in, at);
  for (; at + 64 <= bytes; at += 64) {
#if PAROPT_LEVEL == 2
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), _mm512_loadu_si512(in + at));
#else
    for (std::size_t i = at; i < at + 64; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    }
#endif
  }
  std::memcpy(out + at, in + at, bytes - at);
#else
  std::memcpy(out, in, bytes);
#endif
}
