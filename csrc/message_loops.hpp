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

#if PAROPT_LEVEL == 2

constexpr std::size_t kLaneBytes = 256;

// Fold 16 lanes at once, as long as there are bytes for all; leave the lanes in `lanes` and return
// how many bytes were taken.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t fold_lanes(const std::uint8_t* data,
                                                          std::size_t size, std::uint32_t crc,
                                                          std::uint8_t* lanes) {
  const __m512i by = _mm512_broadcast_i32x4(powers_for(kFoldBy256));
  __m512i lane[4];
  for (int i = 0; i < 4; ++i) lane[i] = _mm512_loadu_si512(data + 64 * i);
  const __m128i before = _mm_cvtsi32_si128(static_cast<int>(crc));
  lane[0] = _mm512_xor_si512(lane[0], _mm512_zextsi128_si512(before));
  std::size_t at = kLaneBytes;
  for (; size - at >= kLaneBytes; at += kLaneBytes) {
    for (int i = 0; i < 4; ++i) {
      const __m512i low = _mm512_clmulepi64_epi128(lane[i], by, 0x00);
      const __m512i high = _mm512_clmulepi64_epi128(lane[i], by, 0x11);
      const __m512i bytes = _mm512_loadu_si512(data + at + 64 * i);
      lane[i] = _mm512_ternarylogic_epi64(low, high, bytes, 0x96);
    }
  }
  for (int i = 0; i < 4; ++i) _mm512_storeu_si512(lanes + 64 * i, lane[i]);
  return at;
}

#else

constexpr std::size_t kLaneBytes = 64;

// The same with 4 lanes.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t fold_lanes(const std::uint8_t* data,
                                                          std::size_t size, std::uint32_t crc,
                                                          std::uint8_t* lanes) {
  const __m128i by64 = powers_for(kFoldBy64);
  __m128i lane[4];
  for (int i = 0; i < 4; ++i) {
    lane[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i));
  }
  lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  std::size_t at = kLaneBytes;
  for (; size - at >= kLaneBytes; at += kLaneBytes) {
    for (int i = 0; i < 4; ++i) lane[i] = fold(lane[i], by64, data + at + 16 * i);
  }
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes + 16 * i), lane[i]);
  }
  return at;
}

#endif

// Carry-less multiplication folds lanes of 16 bytes: V. Gopal et al., "Fast CRC computation for
// generic polynomials using PCLMULQDQ instruction", Intel white paper, 2009. The last 16 bytes go
// through the tables, which replaces the paper's Barrett reduction.
PAROPT_TARGET std::uint32_t crc_update(const std::uint8_t* data, std::size_t size,
                                       std::uint32_t crc) {
  if (size < 2 * kLaneBytes) return crc_tables(data, size, crc);
  std::uint8_t lanes[kLaneBytes];
  const __m128i by16 = powers_for(kFoldBy16);
  const std::size_t taken = fold_lanes(data, size, crc, lanes);
  __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
  for (std::size_t i = 16; i < kLaneBytes; i += 16) all = fold(all, by16, lanes + i);
  for (data += taken, size -= taken; size >= 16; data += 16, size -= 16) {
    all = fold(all, by16, data);
  }
  std::uint8_t last[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last), all);
  return crc_tables(data, size, crc_tables(last, 16, 0));
}

#endif
