// Messages: the encoded bytes of one sparse vector, that is header, indices, values, the
// latter plain or quantised.
//
// docs/wire-format.md fixes the bytes. Everything that reads a message treats it as hostile:
// nothing outside [data, data + size) is read, and FormatError says what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include "index_codec.hpp"
#include "quantize.hpp"

namespace paropt {

constexpr std::size_t kHeaderBytes = 40;
constexpr std::uint8_t kMessageVersion = 1;

struct MessageHeader {
  std::uint8_t version;
  Codec codec;
  ValueType value_type;
  std::uint64_t n, k, index_bytes;
  std::uint32_t checksum;
};

std::uint64_t max_message_bytes(std::uint64_t n, std::uint64_t k, Codec codec, ValueType type);

// Bytes that suffice for these indices in a buffer of `room` bytes; see needed_bytes.
template <class I>
std::uint64_t needed_message_bytes(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                                   std::uint64_t room, ValueType type);

// Encode into `out`, which has needed_message_bytes, and return the bytes written; `values` are
// value_bytes bytes, as they are in memory or as `quantize` made them. Throws std::invalid_argument
// unless the indices are strictly ascending and below n. With Codec::full, `indices` may be
// null and the values in place.
template <class I>
std::size_t encode_message(const I* indices, const void* values, std::size_t k, std::uint64_t n,
                           Codec codec, ValueType type, std::uint8_t* out);

// Read the header and check it against `size`; the payload is not looked at.
MessageHeader read_header(const std::uint8_t* data, std::size_t size);

// Check the checksum and the spare bits of a message whose header has been read.
void verify_message(const std::uint8_t* data, std::size_t size, const MessageHeader& header);

// Decode a verified message into k indices and k values: T is double for float64, else float. I as
// for n in index_codec.hpp. Throws FormatError for bad indices; the outputs may then have been
// written.
template <class T, class I>
void decode_message(const std::uint8_t* data, const MessageHeader& header, I* indices, T* values);

// Add scale * values to dense, n entries, after all checks; a bad message, one of values that do
// not decode to T or of another n changes nothing.
template <class T>
void decode_add_message(const std::uint8_t* data, std::size_t size, std::size_t n, T scale,
                        T* dense);

struct MessageBytes {
  const std::uint8_t* data;
  std::size_t size;
};

// dense = scale * (sum of the vectors of some messages), overwriting what was there: bit for bit
// what decode_add_message of one after the other makes of zeros, with the same checks before
// anything is written. `indices` and `values` have room for the entries of all messages, else
// std::invalid_argument; what was in them is lost. I is std::uint32_t or, for n above 2^32,
// std::uint64_t.
template <class T, class I>
void decode_sum_messages(const MessageBytes* messages, std::size_t count, std::size_t n, T scale,
                         I* indices, T* values, std::size_t room, T* dense);

// The entries of that sum, of scale 1, that are not zero, by ascending index, into `to_indices` and
// `to_values`, which have room for the entries of all messages too; returns their number.
template <class T, class I>
std::size_t decode_merge_messages(const MessageBytes* messages, std::size_t count, std::size_t n,
                                  I* indices, T* values, std::size_t room, I* to_indices,
                                  T* to_values);

// The CRC-32 of zlib and Ethernet; `before` is that of the bytes before these.
std::uint32_t crc32(const std::uint8_t* data, std::size_t size, std::uint32_t before = 0);

}  // namespace paropt
