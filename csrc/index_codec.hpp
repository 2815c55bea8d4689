// Ascending positions as bytes. docs/wire-format.md describes the formats; in short:
//
// rice        Per block of 1024 positions a parameter l. A gap (position minus the first position
//             it could have) is split into its low l bits, packed, and a quotient, written in unary
//             in a stream of its own: a position's place among the ones of that stream is the sum
//             of all quotients up to it, so that only the low bits have to be summed.
// elias_fano  The same, but what is split is the distance from the start of the block: about half a
//             bit more per position, and nothing to be summed at all.
// bitmap      One bit per entry of the vector.
// raw         The positions as integers.
// full        Nothing: all n entries of the vector are there.
//
// All functions are pure and safe to call from several threads. I is std::uint32_t
// (n <= 2^32) or std::uint64_t; n <= kMaxEntries and k <= n everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quantize.hpp"

namespace paropt {

enum class Codec : std::uint8_t { rice = 1, bitmap = 2, elias_fano = 3, raw = 4, full = 5 };
constexpr int kCodecs = 5;

// The codec that takes the fewest bytes for these positions, however they cluster: full for all of
// them. Elias-Fano is never the one: it is for those who want speed. Throws as encode_indices does,
// if it looks.
template <class I>
Codec choose_codec(const I* indices, std::size_t k, std::uint64_t n);

// Bytes that suffice for any k positions below n.
std::uint64_t max_encoded_bytes(std::uint64_t n, std::uint64_t k, Codec codec);

// The same for the codec that choose_codec picks.
std::uint64_t max_chosen_bytes(std::uint64_t n, std::uint64_t k);

// Bytes that suffice for these positions: max_encoded_bytes, but the exact number where the codec
// is rice and `room` is less than that.
template <class I>
std::uint64_t needed_bytes(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                           std::uint64_t room);

// Encode and return the number of bytes written. `out` has needed_bytes. Throws
// std::invalid_argument unless the indices are strictly ascending and below n; `out` may then have
// been written. With full, `indices` may be null.
template <class I>
std::size_t encode_indices(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                           std::uint8_t* out);

// Decode exactly `size` bytes into k indices. The bytes may be hostile: nothing outside them is
// read, and FormatError is thrown unless they encode exactly k ascending indices below n; `out`
// may then have been written.
template <class I>
void decode_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                    Codec codec, I* out);

// The checks of decode_indices without a place for the indices.
void validate_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                      Codec codec);

// dense[index] += scale * values[j] for the j-th index, after all checks of decode_indices; the
// values are the bytes of k values of a type that decodes to T. The calling thread keeps room for k
// indices for its next call.
template <class T>
void decode_scatter_add(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                        Codec codec, ValueType type, const std::uint8_t* values, T scale, T* dense);

}  // namespace paropt
