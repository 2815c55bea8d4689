#include "index_codec.hpp"

#include <algorithm>
#include <string>

#include "common.hpp"

#define PAROPT_LOOPS "index_codec_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

constexpr std::size_t kBlock = 1024;           // indices with one parameter
constexpr std::size_t kEntry = 2;              // bytes per block in the directory
constexpr unsigned kMostLowBits = 40;          // a gap is below kMaxEntries
constexpr std::size_t kMostUnaryBytes = 1023;  // what the directory can say
constexpr std::size_t kMostLowBytes = kBlock * kMostLowBits / 8;
constexpr std::size_t kSlack = 64;                // what the loops may touch past a stream
constexpr std::size_t kBitmapPiece = kBlock / 8;  // bytes of a bitmap that are decoded at once

// One block as the directory describes it: where its streams are and how they are read.
struct Block {
  unsigned low_bits;
  std::size_t count, low_bytes, unary_bytes;
};

std::size_t block_count(std::size_t k, std::size_t block) {
  return std::min(kBlock, k - block * kBlock);
}

// For gaps with a geometric distribution the best parameter is near log2(ln 2 * mean gap); the
// factor is taken as 177/256. The exact sizes for it and its successor decide.
template <class I>
Block plan_block(const I* indices, std::size_t count, std::uint64_t start) {
  const std::uint64_t gaps = std::uint64_t{indices[count - 1]} + 1 - start - count;
  const unsigned width = bit_width(gaps * 177 / 256 / count);
  const unsigned l = width > 0 ? width - 1 : 0;
  std::uint64_t sums[2];
  PAROPT_DISPATCH(quotient_sums(indices, count, start, l, sums));
  const unsigned more = sums[1] + count < sums[0];
  return {l + more, count, (count * (l + more) + 7) / 8, (count + sums[more] + 7) / 8};
}

template <class I>
[[noreturn]] void fail_to_encode(const I* indices, std::size_t k, std::uint64_t n) {
  const std::size_t i = static_cast<std::size_t>(
      std::adjacent_find(indices, indices + k, [](I a, I b) { return a >= b; }) - indices);
  if (i + 1 < k) {
    throw std::invalid_argument("indices must be strictly ascending, got " +
                                std::to_string(indices[i]) + " before " +
                                std::to_string(indices[i + 1]));
  }
  throw std::invalid_argument("indices must be below n = " + std::to_string(n) + ", got " +
                              std::to_string(indices[k - 1]));
}

template <class I>
std::size_t encode_rice(const I* indices, std::size_t k, std::uint8_t* out) {
  std::uint8_t* entry = out;
  std::uint8_t* end = out + ceil_div(k, kBlock) * kEntry;
  std::uint64_t start = 0;
  for (std::size_t i = 0; i < k; i += kBlock) {
    const Block block = plan_block(indices + i, std::min(kBlock, k - i), start);
    // A block is made aside, since the loops write whole words.
    std::uint8_t streams[kMostLowBytes + kMostUnaryBytes + 2 * kSlack];
    std::uint8_t* unary = streams + block.low_bytes + kSlack;
    std::memset(streams, 0, block.low_bytes + block.unary_bytes + 2 * kSlack);
    PAROPT_DISPATCH(encode_block(indices + i, block.count, start, block.low_bits, streams, unary));
    store(entry, static_cast<std::uint16_t>(block.low_bits << 10 | block.unary_bytes));
    std::memcpy(end, streams, block.low_bytes);
    std::memcpy(end + block.low_bytes, unary, block.unary_bytes);
    entry += kEntry;
    end += block.low_bytes + block.unary_bytes;
    start = std::uint64_t{indices[i + block.count - 1]} + 1;
  }
  return static_cast<std::size_t>(end - out);
}

Block read_entry(const std::uint8_t* data, std::size_t block, std::size_t k) {
  const unsigned entry = load<std::uint16_t>(data + block * kEntry);
  const unsigned low_bits = entry >> 10;
  if (low_bits > kMostLowBits) {
    throw FormatError("rice parameter must be at most " + std::to_string(kMostLowBits) + ", got " +
                      std::to_string(low_bits) + " in block " + std::to_string(block));
  }
  const std::size_t count = block_count(k, block);
  return {low_bits, count, (count * low_bits + 7) / 8, entry & kMostUnaryBytes};
}

// Each encoding is unique for its parameters: spare bits are zero.
void check_streams(const std::uint8_t* lows, const Block& block, std::size_t number) {
  const std::uint8_t* unary = lows + block.low_bytes;
  const std::size_t ones = PAROPT_DISPATCH(count_ones(unary, block.unary_bytes));
  if (ones != block.count || unary[block.unary_bytes - 1] == 0) {
    throw FormatError("unary stream must hold " + std::to_string(block.count) +
                      " ones and end with one, got " + std::to_string(ones) + " in block " +
                      std::to_string(number));
  }
  const std::size_t spare = block.low_bytes * 8 - block.count * block.low_bits;
  if (spare > 0 && unary[-1] >> (8 - spare) != 0) {
    throw FormatError("spare low bits must be zero in block " + std::to_string(number));
  }
}

// Decode block by block and hand each block's indices to sink(indices, first, count), where
// `first` counts the indices before.
template <class I, class Sink>
void walk_rice(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
               Sink sink) {
  const std::size_t blocks = ceil_div(k, kBlock);
  if (size / kEntry < blocks) {
    throw FormatError("index stream is truncated: the directory takes " +
                      std::to_string(blocks * kEntry) + " bytes, got " + std::to_string(size));
  }
  std::size_t at = blocks * kEntry;
  std::uint64_t start = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Block block = read_entry(data, b, k);
    const std::size_t bytes = block.low_bytes + block.unary_bytes;
    if (size - at < bytes) {
      throw FormatError("index stream is truncated: block " + std::to_string(b) + " takes " +
                        std::to_string(bytes) + " bytes, got " + std::to_string(size - at));
    }
    check_streams(data + at, block, b);
    std::uint8_t padded[kMostLowBytes + kMostUnaryBytes + kSlack];
    const std::uint8_t* lows = data + at;
    if (size - at < bytes + kSlack) {  // the loops read whole words
      std::memcpy(padded, lows, bytes);
      std::memset(padded + bytes, 0, kSlack);
      lows = padded;
    }
    I indices[kBlock];
    start = PAROPT_DISPATCH(
        decode_block(lows, lows + block.low_bytes, block.count, start, block.low_bits, indices));
    if (start > n) {
      throw FormatError("indices must be below n = " + std::to_string(n) + ", got " +
                        std::to_string(start - 1));
    }
    sink(indices, b * kBlock, block.count);
    at += bytes;
  }
  if (at != size) {
    throw FormatError("index stream has " + std::to_string(size - at) + " trailing bytes");
  }
}

void check_bitmap(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k) {
  if (size != (n + 7) / 8) {
    throw FormatError("bitmap must take " + std::to_string((n + 7) / 8) + " bytes, got " +
                      std::to_string(size));
  }
  if (n % 8 != 0 && data[size - 1] >> (n % 8) != 0) {
    throw FormatError("spare bits of the bitmap must be zero");
  }
  const std::size_t ones = PAROPT_DISPATCH(count_ones(data, size));
  if (ones != k) {
    throw FormatError("bitmap must hold " + std::to_string(k) + " ones, got " +
                      std::to_string(ones));
  }
}

template <class I, class Sink>
void walk_bitmap(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                 Sink sink) {
  check_bitmap(data, size, n, k);
  std::size_t found = 0;
  for (std::size_t at = 0; at < size; at += kBitmapPiece) {
    I indices[kBlock];
    const std::size_t bytes = std::min(kBitmapPiece, size - at);
    const std::size_t count =
        PAROPT_DISPATCH(list_ones(data + at, bytes, std::uint64_t{at} * 8, indices));
    sink(indices, found, count);
    found += count;
  }
}

template <class I, class Sink>
void walk(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k, Codec codec,
          Sink sink) {
  if (codec == Codec::rice) {
    walk_rice<I>(data, size, n, k, sink);
  } else {
    walk_bitmap<I>(data, size, n, k, sink);
  }
}

}  // namespace

// From 3/8 on, the rice stream of an even spread would be longer than the bitmap.
Codec choose_codec(std::uint64_t n, std::uint64_t k) {
  return k > 0 && 8 * k >= 3 * n ? Codec::bitmap : Codec::rice;
}

std::uint64_t max_encoded_bytes(std::uint64_t n, std::uint64_t k, Codec codec) {
  if (codec == Codec::bitmap) return (n + 7) / 8;
  if (k == 0) return 0;
  // A block of c indices that span s positions takes at most c * (log2(s/c) + 3) bits and 7 spare
  // bits in each stream. The logarithm is concave, so an even spread is the worst case.
  return (k * (bit_width(n / k) + 3) + 7) / 8 + ceil_div(k, kBlock) * (kEntry + 2);
}

template <class I>
std::size_t encode_indices(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                           std::uint8_t* out) {
  if (k > 0 && (!PAROPT_DISPATCH(ascending(indices, k)) || indices[k - 1] >= n)) {
    fail_to_encode(indices, k, n);
  }
  if (codec == Codec::rice) return encode_rice(indices, k, out);
  const std::size_t size = (n + 7) / 8;
  std::memset(out, 0, size);
  PAROPT_DISPATCH(set_ones(indices, k, out));
  return size;
}

template <class I>
void decode_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                    Codec codec, I* out) {
  walk<I>(data, size, n, k, codec, [out](const I* indices, std::size_t first, std::size_t count) {
    std::copy_n(indices, count, out + first);
  });
}

void validate_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                      Codec codec) {
  if (codec == Codec::bitmap) return check_bitmap(data, size, n, k);
  walk_rice<std::uint64_t>(data, size, n, k, [](const std::uint64_t*, std::size_t, std::size_t) {});
}

template <class T>
void decode_scatter_add(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                        Codec codec, const std::uint8_t* values, T scale, T* dense) {
  walk<std::uint64_t>(
      data, size, n, k, codec,
      [=](const std::uint64_t* indices, std::size_t first, std::size_t count) {
        PAROPT_DISPATCH(scatter_block(dense, indices, values + first * sizeof(T), count, scale));
      });
}

template std::size_t encode_indices(const std::uint32_t*, std::size_t, std::uint64_t, Codec,
                                    std::uint8_t*);
template std::size_t encode_indices(const std::uint64_t*, std::size_t, std::uint64_t, Codec,
                                    std::uint8_t*);
template void decode_indices(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t, Codec,
                             std::uint32_t*);
template void decode_indices(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t, Codec,
                             std::uint64_t*);
template void decode_scatter_add(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t,
                                 Codec, const std::uint8_t*, float, float*);
template void decode_scatter_add(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t,
                                 Codec, const std::uint8_t*, double, double*);

}  // namespace paropt
