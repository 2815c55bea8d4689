#include "message.hpp"

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "common.hpp"
#include "reduce.hpp"

namespace paropt {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;  // bit 31 is x^0, bit 0 is x^31

// at[j][b]: the CRC register after byte b and j zero bytes.
struct CrcTables {
  std::uint32_t at[8][256];
};

constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ kPolynomial : crc >> 1;
    tables.at[0][byte] = crc;
  }
  for (int j = 1; j < 8; ++j) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables.at[j - 1][byte];
      tables.at[j][byte] = tables.at[0][before & 255] ^ before >> 8;
    }
  }
  return tables;
}

constexpr CrcTables kCrcTables = make_crc_tables();

// x^n modulo the polynomial, as a factor for carry-less multiplication: in reflected order a
// product of two 64-bit lanes comes out shifted by one bit, hence the 33 bits.
constexpr std::uint64_t power_of_x(int n) {
  std::uint32_t power = 0x80000000;
  for (int i = 0; i < n; ++i) power = (power & 1) != 0 ? power >> 1 ^ kPolynomial : power >> 1;
  return std::uint64_t{power} << 1;
}

// Factors that move the two halves of a lane `bytes` ahead; the low half holds the earlier bytes.
struct FoldPowers {
  std::uint64_t low, high;
};

constexpr FoldPowers fold_powers(int bytes) {
  return {power_of_x(8 * bytes + 32), power_of_x(8 * bytes - 32)};
}

[[maybe_unused]] constexpr FoldPowers kFoldBy256 = fold_powers(256);
[[maybe_unused]] constexpr FoldPowers kFoldBy64 = fold_powers(64);
[[maybe_unused]] constexpr FoldPowers kFoldBy16 = fold_powers(16);

}  // namespace
}  // namespace paropt

#define PAROPT_LOOPS "message_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

constexpr std::uint8_t kMagic[4] = {'P', 'R', 'P', 'T'};
constexpr std::size_t kChecksumAt = 32;

std::string hex(std::uint32_t x) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(x));
  return text;
}

std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Values of all types but one decode to float32.
template <class T>
bool decodes_to(ValueType type) {
  return (type == ValueType::float64) == (sizeof(T) == 8);
}

const char* decoded_name(bool wide) { return wide ? "float64" : "float32"; }

// The CRC of the message with zeros in place of the checksum itself.
std::uint32_t message_checksum(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint8_t kZero[4] = {};
  std::uint32_t crc = crc32(data, kChecksumAt);
  crc = crc32(kZero, 4, crc);
  return crc32(data + kChecksumAt + 4, size - kChecksumAt - 4, crc);
}

void write_header(std::uint8_t* out, Codec codec, ValueType type, std::uint64_t n, std::uint64_t k,
                  std::uint64_t index_bytes) {
  std::memset(out, 0, kHeaderBytes);
  std::memcpy(out, kMagic, 4);
  out[4] = kMessageVersion;
  out[5] = static_cast<std::uint8_t>(codec);
  out[6] = static_cast<std::uint8_t>(type);
  store(out + 8, n);
  store(out + 16, k);
  store(out + 24, index_bytes);
}

// The fields that do not depend on the others.
void check_kind(const std::uint8_t* data, std::size_t size) {
  if (size < kHeaderBytes) {
    throw FormatError("message is truncated: the header takes " + std::to_string(kHeaderBytes) +
                      " bytes, got " + std::to_string(size));
  }
  if (std::memcmp(data, kMagic, 4) != 0) {
    throw FormatError("not a message: expected magic " + hex(load<std::uint32_t>(kMagic)) +
                      ", got " + hex(load<std::uint32_t>(data)));
  }
  if (data[4] != kMessageVersion) {
    throw FormatError("message version must be " + std::to_string(kMessageVersion) + ", got " +
                      std::to_string(data[4]));
  }
  if (data[5] < 1 || data[5] > kCodecs) {
    throw FormatError("index codec must be from 1 to 5, got " + std::to_string(data[5]));
  }
  if (data[6] < 1 || data[6] > kValueTypes) {
    throw FormatError("value type must be from 1 to 7, got " + std::to_string(data[6]));
  }
  if (data[7] != 0 || load<std::uint32_t>(data + kChecksumAt + 4) != 0) {
    throw FormatError("reserved bytes of the header must be zero");
  }
}

}  // namespace

std::uint32_t crc32(const std::uint8_t* data, std::size_t size, std::uint32_t before) {
  return ~PAROPT_DISPATCH(crc_update(data, size, ~before));
}

std::uint64_t max_message_bytes(std::uint64_t n, std::uint64_t k, Codec codec, ValueType type) {
  return kHeaderBytes + padded(max_encoded_bytes(n, k, codec)) + value_bytes(type, k);
}

template <class I>
std::uint64_t needed_message_bytes(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                                   std::uint64_t room, ValueType type) {
  const std::uint64_t rest = kHeaderBytes + value_bytes(type, k);
  room = room < rest ? 0 : (room - rest) / 8 * 8;  // what is left of it once padded
  return rest + padded(needed_bytes(indices, k, n, codec, room));
}

template <class I>
std::size_t encode_message(const I* indices, const void* values, std::size_t k, std::uint64_t n,
                           Codec codec, ValueType type, std::uint8_t* out) {
  std::uint8_t* payload = out + kHeaderBytes;
  const std::size_t index_bytes = encode_indices(indices, k, n, codec, payload);
  const std::size_t value_at = padded(index_bytes);
  std::memset(payload + index_bytes, 0, value_at - index_bytes);
  const std::size_t bytes = value_bytes(type, k);
  // The values of a whole vector may be in place already.
  if (bytes > 0 && values != payload + value_at) std::memcpy(payload + value_at, values, bytes);
  const std::size_t size = kHeaderBytes + value_at + bytes;
  write_header(out, codec, type, n, k, index_bytes);
  store(out + kChecksumAt, message_checksum(out, size));
  return size;
}

MessageHeader read_header(const std::uint8_t* data, std::size_t size) {
  check_kind(data, size);
  const MessageHeader header = {data[4],
                                static_cast<Codec>(data[5]),
                                static_cast<ValueType>(data[6]),
                                load<std::uint64_t>(data + 8),
                                load<std::uint64_t>(data + 16),
                                load<std::uint64_t>(data + 24),
                                load<std::uint32_t>(data + kChecksumAt)};
  if (header.n > kMaxEntries || header.k > header.n) {
    throw FormatError("header must have k <= n <= 2^40, got n = " + std::to_string(header.n) +
                      " and k = " + std::to_string(header.k));
  }
  if (header.index_bytes > size) {
    throw FormatError("message is truncated: its indices take " +
                      std::to_string(header.index_bytes) + " bytes, the message has " +
                      std::to_string(size));
  }
  const std::uint64_t expected =
      kHeaderBytes + padded(header.index_bytes) + value_bytes(header.value_type, header.k);
  if (size != expected) {
    throw FormatError("message must take " + std::to_string(expected) +
                      " bytes by its header, got " + std::to_string(size));
  }
  return header;
}

void verify_message(const std::uint8_t* data, std::size_t size, const MessageHeader& header) {
  const std::uint32_t computed = message_checksum(data, size);
  if (computed != header.checksum) {
    throw FormatError("message was altered: its checksum is " + hex(computed) +
                      ", the header says " + hex(header.checksum));
  }
  for (std::uint64_t i = header.index_bytes; i < padded(header.index_bytes); ++i) {
    if (data[kHeaderBytes + i] != 0) {
      throw FormatError("padding between indices and values must be zero");
    }
  }
  validate_values(header.value_type, data + kHeaderBytes + padded(header.index_bytes), header.k);
}

template <class T, class I>
void decode_message(const std::uint8_t* data, const MessageHeader& header, I* indices, T* values) {
  const std::uint8_t* payload = data + kHeaderBytes;
  decode_indices(payload, header.index_bytes, header.n, header.k, header.codec, indices);
  const std::uint8_t* encoded = payload + padded(header.index_bytes);
  if constexpr (sizeof(T) == 8) {
    if (header.k > 0) std::memcpy(values, encoded, header.k * sizeof(T));
  } else {
    dequantize(header.value_type, encoded, header.k, 0, header.k, values);
  }
}

// The header of a message that must be for n entries which decode to T, all but its indices
// verified.
template <class T>
static MessageHeader verified_header(const std::uint8_t* data, std::size_t size, std::size_t n) {
  const MessageHeader header = read_header(data, size);
  if (!decodes_to<T>(header.value_type) || header.n != n) {
    throw FormatError("message must be for " + std::to_string(n) + " entries of " +
                      decoded_name(sizeof(T) == 8) + " as dense is, got " +
                      std::to_string(header.n) + " of " +
                      decoded_name(header.value_type == ValueType::float64));
  }
  verify_message(data, size, header);
  return header;
}

template <class T>
void decode_add_message(const std::uint8_t* data, std::size_t size, std::size_t n, T scale,
                        T* dense) {
  const MessageHeader header = verified_header<T>(data, size, n);
  const std::uint8_t* payload = data + kHeaderBytes;
  decode_scatter_add(payload, header.index_bytes, n, header.k, header.codec, header.value_type,
                     payload + padded(header.index_bytes), scale, dense);
}

// Decode messages one behind the other into `indices` and `values`.
template <class T, class I>
static std::vector<Sparse<T, I>> decode_all(const MessageBytes* messages, std::size_t count,
                                            std::size_t n, I* indices, T* values,
                                            std::size_t room) {
  std::vector<Sparse<T, I>> vectors;
  std::size_t used = 0;
  for (std::size_t m = 0; m < count; ++m) {
    const auto& [data, size] = messages[m];
    const MessageHeader header = verified_header<T>(data, size, n);
    if (header.k > room - used) {
      throw std::invalid_argument("indices and values must have room for all entries, got " +
                                  std::to_string(room));
    }
    decode_message(data, header, indices + used, values + used);
    vectors.push_back({indices + used, values + used, header.k});
    used += header.k;
  }
  return vectors;
}

template <class T, class I>
void decode_sum_messages(const MessageBytes* messages, std::size_t count, std::size_t n, T scale,
                         I* indices, T* values, std::size_t room, T* dense) {
  const auto vectors = decode_all(messages, count, n, indices, values, room);
  scatter_sum(dense, n, vectors.data(), count, scale);
}

template <class T, class I>
std::size_t decode_merge_messages(const MessageBytes* messages, std::size_t count, std::size_t n,
                                  I* indices, T* values, std::size_t room, I* to_indices,
                                  T* to_values) {
  const auto vectors = decode_all(messages, count, n, indices, values, room);
  return merge_sum(n, vectors.data(), count, to_indices, to_values);
}

template std::uint64_t needed_message_bytes(const std::uint32_t*, std::size_t, std::uint64_t, Codec,
                                            std::uint64_t, ValueType);
template std::uint64_t needed_message_bytes(const std::uint64_t*, std::size_t, std::uint64_t, Codec,
                                            std::uint64_t, ValueType);
template std::size_t encode_message(const std::uint32_t*, const void*, std::size_t, std::uint64_t,
                                    Codec, ValueType, std::uint8_t*);
template std::size_t encode_message(const std::uint64_t*, const void*, std::size_t, std::uint64_t,
                                    Codec, ValueType, std::uint8_t*);
template void decode_message(const std::uint8_t*, const MessageHeader&, std::uint32_t*, float*);
template void decode_message(const std::uint8_t*, const MessageHeader&, std::uint64_t*, float*);
template void decode_message(const std::uint8_t*, const MessageHeader&, std::uint32_t*, double*);
template void decode_message(const std::uint8_t*, const MessageHeader&, std::uint64_t*, double*);
template void decode_add_message(const std::uint8_t*, std::size_t, std::size_t, float, float*);
template void decode_add_message(const std::uint8_t*, std::size_t, std::size_t, double, double*);

#define PAROPT_INSTANTIATE_SUM(T, I)                                                            \
  template void decode_sum_messages(const MessageBytes*, std::size_t, std::size_t, T, I*, T*,   \
                                    std::size_t, T*);                                           \
  template std::size_t decode_merge_messages(const MessageBytes*, std::size_t, std::size_t, I*, \
                                             T*, std::size_t, I*, T*)
PAROPT_INSTANTIATE_SUM(float, std::uint32_t);
PAROPT_INSTANTIATE_SUM(float, std::uint64_t);
PAROPT_INSTANTIATE_SUM(double, std::uint32_t);
PAROPT_INSTANTIATE_SUM(double, std::uint64_t);

}  // namespace paropt
