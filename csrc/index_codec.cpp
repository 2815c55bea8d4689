#include "index_codec.hpp"

#include <algorithm>
#include <string>

#include "common.hpp"
#include "workspace.hpp"

namespace paropt {

constexpr std::size_t kBlock = 1024;  // indices with one parameter
constexpr std::size_t kSlack = 64;    // what the loops may touch past a stream

}  // namespace paropt

#define PAROPT_LOOPS "ones_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "scatter_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "index_codec_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

constexpr std::size_t kEntry = 2;              // bytes per block in the directory
constexpr unsigned kMostLowBits = 40;          // a gap is below kMaxEntries
constexpr std::size_t kMostUnaryBytes = 1023;  // what the directory can say
constexpr std::size_t kMostLowBytes = kBlock * kMostLowBits / 8;
constexpr std::size_t kBitmapPiece = kBlock / 8;  // bytes of a bitmap that are decoded at once

// One block as the directory describes it: where its streams are and how they are read.
struct Block {
  unsigned low_bits;
  std::size_t count, low_bytes, unary_bytes;
};

std::size_t block_count(std::size_t k, std::size_t block) {
  return std::min(kBlock, k - block * kBlock);
}

Block block_of(std::size_t count, unsigned low_bits, std::uint64_t quotients) {
  return {low_bits, count, (count * low_bits + 7) / 8,
          static_cast<std::size_t>(count + quotients + 7) / 8};
}

// For gaps with a geometric distribution the best parameter is near log2(ln 2 * mean gap); the
// factor is taken as 177/256. The exact sizes for it and its successor decide.
template <class I>
Block plan_rice(const I* indices, std::size_t count, std::uint64_t start) {
  const std::uint64_t gaps = std::uint64_t{indices[count - 1]} + 1 - start - count;
  const unsigned width = bit_width(gaps * 177 / 256 / count);
  const unsigned l = width > 0 ? width - 1 : 0;
  std::uint64_t sums[2];
  PAROPT_DISPATCH(quotient_sums(indices, count, start, l, sums));
  const unsigned more = sums[1] + count < sums[0];
  return block_of(count, l + more, sums[more]);
}

// The sum of all quotients is that of the last distance; one more low bit would halve it.
Block plan_elias_fano(std::uint64_t last, std::size_t count) {
  unsigned l = 0;
  while ((last >> l) - (last >> (l + 1)) > count) ++l;
  return block_of(count, l, last >> l);
}

template <class I>
void check_indices(const I* indices, std::size_t k, std::uint64_t n) {
  if (k == 0) return;
  if (!PAROPT_DISPATCH(ascending(indices, k))) {
    const I* bad = std::adjacent_find(indices, indices + k, [](I a, I b) { return a >= b; });
    throw std::invalid_argument("indices must be strictly ascending, got " +
                                std::to_string(bad[0]) + " before " + std::to_string(bad[1]));
  }
  if (indices[k - 1] >= n) {
    throw std::invalid_argument("indices must be below n = " + std::to_string(n) + ", got " +
                                std::to_string(indices[k - 1]));
  }
}

template <bool kGaps, class I>
Block plan(const I* indices, std::size_t count, std::uint64_t start) {
  if (kGaps) return plan_rice(indices, count, start);
  return plan_elias_fano(indices[count - 1] - start, count);
}

template <bool kGaps, class I>
std::size_t encode_split(const I* indices, std::size_t k, std::uint8_t* out) {
  std::uint8_t* entry = out;
  std::uint8_t* end = out + ceil_div(k, kBlock) * kEntry;
  std::uint64_t start = 0;
  for (std::size_t i = 0; i < k; i += kBlock) {
    const Block block = plan<kGaps>(indices + i, std::min(kBlock, k - i), start);
    // A block is made aside, since the loops write whole words.
    std::uint8_t streams[kMostLowBytes + kMostUnaryBytes + 2 * kSlack];
    std::uint8_t* unary = streams + block.low_bytes + kSlack;
    PAROPT_DISPATCH(
        encode_block<kGaps>(indices + i, block.count, start, block.low_bits, streams, unary));
    store(entry, static_cast<std::uint16_t>(block.low_bits << 10 | block.unary_bytes));
    std::memcpy(end, streams, block.low_bytes);
    std::memcpy(end + block.low_bytes, unary, block.unary_bytes);
    entry += kEntry;
    end += block.low_bytes + block.unary_bytes;
    start = std::uint64_t{indices[i + block.count - 1]} + 1;
  }
  return static_cast<std::size_t>(end - out);
}

// The bytes that encode_split<true> would take.
template <class I>
std::uint64_t rice_bytes(const I* indices, std::size_t k) {
  std::uint64_t bytes = ceil_div(k, kBlock) * kEntry, start = 0;
  for (std::size_t i = 0; i < k; i += kBlock) {
    const Block block = plan_rice(indices + i, std::min(kBlock, k - i), start);
    bytes += block.low_bytes + block.unary_bytes;
    start = std::uint64_t{indices[i + block.count - 1]} + 1;
  }
  return bytes;
}

std::uint64_t raw_bytes(std::uint64_t n, std::uint64_t k) {
  return k * (n <= std::uint64_t{1} << 32 ? 4 : 8);
}

Block read_entry(const std::uint8_t* data, std::size_t block, std::size_t k) {
  const unsigned entry = load<std::uint16_t>(data + block * kEntry);
  const unsigned low_bits = entry >> 10;
  if (low_bits > kMostLowBits) {
    throw FormatError("low bits must be at most " + std::to_string(kMostLowBits) + ", got " +
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

[[noreturn]] void fail_to_ascend(std::size_t number) {
  throw FormatError("indices must be strictly ascending in block " + std::to_string(number));
}

// Decode block by block and hand each block's indices to sink(indices, first, count), where
// `first` counts the indices before.
template <bool kGaps, class I, class Sink>
void walk_split(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
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
    I indices[kBlock + kSlack];
    start = PAROPT_DISPATCH(decode_block<kGaps>(lows, lows + block.low_bytes, block.unary_bytes,
                                                block.count, start, block.low_bits, indices));
    if (!kGaps && !PAROPT_DISPATCH(ascending(indices, block.count))) fail_to_ascend(b);
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
    I indices[kBlock + kSlack];
    const std::size_t bytes = std::min(kBitmapPiece, size - at);
    std::uint8_t padded[kBitmapPiece + kSlack];
    const std::uint8_t* piece = data + at;
    if (size - at < bytes + kSlack) {  // the loops read whole words
      std::memcpy(padded, piece, bytes);
      piece = padded;
    }
    const std::size_t count =
        PAROPT_DISPATCH(list_ones(piece, bytes, std::uint64_t{at} * 8, indices));
    sink(indices, found, count);
    found += count;
  }
}

template <class U, class I, class Sink>
void walk_raw(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
              Sink sink) {
  if (size != k * sizeof(U)) {
    throw FormatError("raw indices must take " + std::to_string(k * sizeof(U)) + " bytes, got " +
                      std::to_string(size));
  }
  std::uint64_t start = 0;
  for (std::size_t first = 0; first < k; first += kBlock) {
    const std::size_t count = std::min(kBlock, k - first);
    U words[kBlock];
    I indices[kBlock];
    std::memcpy(words, data + first * sizeof(U), count * sizeof(U));
    if (words[0] < start || !PAROPT_DISPATCH(ascending(words, count))) {
      fail_to_ascend(first / kBlock);
    }
    start = std::uint64_t{words[count - 1]} + 1;
    if (words[count - 1] >= n) {
      throw FormatError("indices must be below n = " + std::to_string(n) + ", got " +
                        std::to_string(start - 1));
    }
    for (std::size_t i = 0; i < count; ++i) indices[i] = static_cast<I>(words[i]);
    sink(indices, first, count);
  }
}

void check_full(std::size_t size, std::uint64_t n, std::size_t k) {
  if (size != 0 || k != n) {
    throw FormatError("full indices must take 0 bytes for all " + std::to_string(n) +
                      " entries, got " + std::to_string(size) + " bytes for " + std::to_string(k));
  }
}

template <class I, class Sink>
void walk_full(std::size_t size, std::uint64_t n, std::size_t k, Sink sink) {
  check_full(size, n, k);
  for (std::size_t first = 0; first < k; first += kBlock) {
    I indices[kBlock];
    const std::size_t count = std::min(kBlock, k - first);
    for (std::size_t i = 0; i < count; ++i) indices[i] = static_cast<I>(first + i);
    sink(indices, first, count);
  }
}

template <class I, class Sink>
void walk(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k, Codec codec,
          Sink sink) {
  switch (codec) {
    case Codec::rice:
      return walk_split<true, I>(data, size, n, k, sink);
    case Codec::elias_fano:
      return walk_split<false, I>(data, size, n, k, sink);
    case Codec::bitmap:
      return walk_bitmap<I>(data, size, n, k, sink);
    case Codec::raw:
      if (n <= std::uint64_t{1} << 32) return walk_raw<std::uint32_t, I>(data, size, n, k, sink);
      return walk_raw<std::uint64_t, I>(data, size, n, k, sink);
    case Codec::full:
      return walk_full<I>(size, n, k, sink);
  }
}

}  // namespace

template <class I>
Codec choose_codec(const I* indices, std::size_t k, std::uint64_t n) {
  if (k == 0) return Codec::rice;
  if (k == n) return Codec::full;
  const std::uint64_t bitmap = (n + 7) / 8, raw = raw_bytes(n, k);
  const std::uint64_t other = std::min(bitmap, raw);
  // Where rice cannot lose, its size need not be known.
  if (max_encoded_bytes(n, k, Codec::rice) <= other) return Codec::rice;
  check_indices(indices, k, n);
  if (rice_bytes(indices, k) <= other) return Codec::rice;
  return bitmap <= raw ? Codec::bitmap : Codec::raw;
}

std::uint64_t max_encoded_bytes(std::uint64_t n, std::uint64_t k, Codec codec) {
  if (codec == Codec::bitmap) return (n + 7) / 8;
  if (codec == Codec::raw) return raw_bytes(n, k);
  if (k == 0 || codec == Codec::full) return 0;
  // A block of c indices that span s positions takes at most c * (log2(s/c) + 3) bits and 7 spare
  // bits in each stream. The logarithm is concave, so an even spread is the worst case.
  return (k * (bit_width(n / k) + 3) + 7) / 8 + ceil_div(k, kBlock) * (kEntry + 2);
}

std::uint64_t max_chosen_bytes(std::uint64_t n, std::uint64_t k) {
  if (k == 0 || k == n) return 0;
  return std::min({max_encoded_bytes(n, k, Codec::rice), (n + 7) / 8, raw_bytes(n, k)});
}

template <class I>
std::uint64_t needed_bytes(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                           std::uint64_t room) {
  const std::uint64_t most = max_encoded_bytes(n, k, codec);
  return codec == Codec::rice && room < most ? rice_bytes(indices, k) : most;
}

template <class I>
std::size_t encode_indices(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                           std::uint8_t* out) {
  if (codec == Codec::full && k != n) {
    throw std::invalid_argument("codec full must have all " + std::to_string(n) + " entries, got " +
                                std::to_string(k));
  }
  if (indices != nullptr) check_indices(indices, k, n);
  if (codec == Codec::full) return 0;
  if (codec == Codec::rice) return encode_split<true>(indices, k, out);
  if (codec == Codec::elias_fano) return encode_split<false>(indices, k, out);
  if (codec == Codec::raw) {
    const bool narrow = n <= std::uint64_t{1} << 32;
    for (std::size_t i = 0; i < k; ++i) {
      if (narrow) {
        store(out + 4 * i, static_cast<std::uint32_t>(indices[i]));
      } else {
        store(out + 8 * i, std::uint64_t{indices[i]});
      }
    }
    return raw_bytes(n, k);
  }
  const std::size_t size = (n + 7) / 8;
  if (size > 0) std::memset(out, 0, size);
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
  if (codec == Codec::full) return check_full(size, n, k);
  const auto nowhere = [](const auto*, std::size_t, std::size_t) {};
  if (n <= std::uint64_t{1} << 32) return walk<std::uint32_t>(data, size, n, k, codec, nowhere);
  walk<std::uint64_t>(data, size, n, k, codec, nowhere);
}

namespace {

// Hand the values to add(values, first, count), block by block.
template <class T, class Add>
void for_each_block(ValueType type, const std::uint8_t* values, std::size_t k, Add add) {
  for (std::size_t first = 0; first < k; first += kBlock) {
    T decoded[kBlock];
    const std::size_t count = std::min(kBlock, k - first);
    if constexpr (sizeof(T) == 8) {
      std::memcpy(decoded, values + first * sizeof(T), count * sizeof(T));
    } else {
      dequantize(type, values, k, first, count, decoded);
    }
    add(decoded, first, count);
  }
}

template <class I, class T>
void scatter_decoded(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                     Codec codec, ValueType type, const std::uint8_t* values, T scale, T* dense) {
  thread_local Workspace workspace;
  I* indices = reinterpret_cast<I*>(workspace.room(k * sizeof(I)));
  decode_indices(data, size, n, k, codec, indices);
  for_each_block<T>(type, values, k, [=](const T* decoded, std::size_t first, std::size_t count) {
    PAROPT_DISPATCH(scatter_block(dense, indices + first, decoded, count, k - first, scale));
  });
}

}  // namespace

template <class T>
void decode_scatter_add(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                        Codec codec, ValueType type, const std::uint8_t* values, T scale,
                        T* dense) {
  if (codec == Codec::full) {
    check_full(size, n, k);
    for_each_block<T>(type, values, k, [=](const T* decoded, std::size_t first, std::size_t count) {
      PAROPT_DISPATCH(add_block(dense + first, decoded, count, scale));
    });
  } else if (n <= std::uint64_t{1} << 32) {
    scatter_decoded<std::uint32_t>(data, size, n, k, codec, type, values, scale, dense);
  } else {
    scatter_decoded<std::uint64_t>(data, size, n, k, codec, type, values, scale, dense);
  }
}

template std::uint64_t needed_bytes(const std::uint32_t*, std::size_t, std::uint64_t, Codec,
                                    std::uint64_t);
template std::uint64_t needed_bytes(const std::uint64_t*, std::size_t, std::uint64_t, Codec,
                                    std::uint64_t);
template Codec choose_codec(const std::uint32_t*, std::size_t, std::uint64_t);
template Codec choose_codec(const std::uint64_t*, std::size_t, std::uint64_t);
template std::size_t encode_indices(const std::uint32_t*, std::size_t, std::uint64_t, Codec,
                                    std::uint8_t*);
template std::size_t encode_indices(const std::uint64_t*, std::size_t, std::uint64_t, Codec,
                                    std::uint8_t*);
template void decode_indices(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t, Codec,
                             std::uint32_t*);
template void decode_indices(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t, Codec,
                             std::uint64_t*);
template void decode_scatter_add(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t,
                                 Codec, ValueType, const std::uint8_t*, float, float*);
template void decode_scatter_add(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t,
                                 Codec, ValueType, const std::uint8_t*, double, double*);

}  // namespace paropt
