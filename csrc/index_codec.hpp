// Ascending positions as bytes. docs/wire-format.md describes the two formats; in short:
//
// rice    Per block of 1024 positions a parameter l. A gap (position minus the first position it
//         could have) is split into its low l bits, packed, and a quotient, written in unary in a
//         stream of its own: a position's place among the ones of that stream is the sum of all
//         quotients up to it, so that only the low bits have to be summed.
// bitmap  One bit per entry of the vector.
//
// All functions are pure and safe to call from several threads. I is std::uint32_t
// (n <= 2^32) or std::uint64_t; n <= kMaxEntries and k <= n everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paropt {

enum class Codec : std::uint8_t { rice = 1, bitmap = 2 };

// The codec that takes fewer bytes when the positions are spread evenly; rice for k = 0.
Codec choose_codec(std::uint64_t n, std::uint64_t k);

// Bytes that suffice for any k positions below n.
std::uint64_t max_encoded_bytes(std::uint64_t n, std::uint64_t k, Codec codec);

// Encode and return the number of bytes written. `out` has max_encoded_bytes. Throws
// std::invalid_argument unless the indices are strictly ascending and below n; `out` may then have
// been written.
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

// dense[index] += scale * values[j] for the j-th index, without a list of them between; the values
// are given as bytes since in a message they need not be aligned. Call validate_indices first: this
// function throws too, but not before the first write.
template <class T>
void decode_scatter_add(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                        Codec codec, const std::uint8_t* values, T scale, T* dense);

}  // namespace paropt
