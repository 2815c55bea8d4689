// The loops of message.cpp; see foreach_isa.hpp.

// Continue a CRC register (not inverted) over some bytes, eight at a time by table lookup:
// M. E. Kounavis and F. L. Berry, "Novel table lookup-based algorithms for high-performance CRC
// generation", IEEE Trans. Comput. 57(11), 2008.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::uint32_t crc_tables(const std::uint8_t* data,
                                                            std::size_t size, std::uint32_t crc) {
  const auto& t = kCrcTables.at;
  for (; size >= 8; data += 8, size -= 8) {
    const std::uint64_t x = load<std::uint64_t>(data) ^ crc;
    crc = t[7][x & 255] ^ t[6][x >> 8 & 255] ^ t[5][x >> 16 & 255] ^ t[4][x >> 24 & 255] ^
          t[3][x >> 32 & 255] ^ t[2][x >> 40 & 255] ^ t[1][x >> 48 & 255] ^ t[0][x >> 56];
  }
  for (; size > 0; ++data, --size) crc = t[0][(crc ^ *data) & 255] ^ crc >> 8;
  return crc;
}

#if PAROPT_LEVEL == 0

PAROPT_TARGET std::uint32_t crc_update(const std::uint8_t* data, std::size_t size,
                                       std::uint32_t crc) {
  return crc_tables(data, size, crc);
}

#else

// Multiply a 128-bit remainder by x^distance modulo the CRC polynomial and add the next 16 bytes.
PAROPT_TARGET PAROPT_ALWAYS_INLINE __m128i fold(__m128i remainder, __m128i powers,
                                                const std::uint8_t* next) {
  const __m128i low = _mm_clmulepi64_si128(remainder, powers, 0x00);
  const __m128i high = _mm_clmulepi64_si128(remainder, powers, 0x11);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(next));
  return _mm_xor_si128(_mm_xor_si128(low, high), bytes);
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE __m128i powers_for(const FoldPowers& powers) {
  return _mm_set_epi64x(static_cast<long long>(powers.high), static_cast<long long>(powers.low));
}

// Carry-less multiplication folds four lanes of 16 bytes: V. Gopal et al., "Fast CRC computation
// for generic polynomials using PCLMULQDQ instruction", Intel white paper, 2009. The last 16 bytes
// go through the tables, which replaces the paper's Barrett reduction.
PAROPT_TARGET std::uint32_t crc_update(const std::uint8_t* data, std::size_t size,
                                       std::uint32_t crc) {
  if (size < 128) return crc_tables(data, size, crc);
  const __m128i by64 = powers_for(kFoldBy64), by16 = powers_for(kFoldBy16);
  __m128i lane[4];
  for (int i = 0; i < 4; ++i) {
    lane[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i));
  }
  lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
    for (int i = 0; i < 4; ++i) lane[i] = fold(lane[i], by64, data + 16 * i);
  }
  std::uint8_t bytes[48];
  for (int i = 1; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + 16 * (i - 1)), lane[i]);
  }
  __m128i all = lane[0];
  for (int i = 0; i < 3; ++i) all = fold(all, by16, bytes + 16 * i);
  for (; size >= 16; data += 16, size -= 16) all = fold(all, by16, data);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), all);
  return crc_tables(data, size, crc_tables(bytes, 16, 0));
}

#endif
