// index_codec.hpp for arrays on the GPU: the same bytes. Encoded bytes are aligned to 8, and so are
// workspaces; k is at most 2^34 where it is decoded. Everything runs in order on a stream and
// returns at once, but for the functions that say that they wait.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "index_codec.hpp"
#include "quantize.hpp"

namespace paropt::cuda {

// Bytes of workspace for each of the functions below; for bitmaps it depends on n as well.
std::size_t codec_workspace(std::uint64_t n, std::size_t k, Codec codec);

// Plan a rice encoding of the indices; rice_bytes then waits for the exact number of its bytes, and
// throws std::invalid_argument unless the indices are strictly ascending and below n.
template <class I>
void plan_rice(const I* indices, std::size_t k, std::uint64_t n, void* workspace,
               cudaStream_t stream);
std::uint64_t rice_bytes(const void* workspace, cudaStream_t stream);

// Encode; encoded_bytes then waits for the number of bytes, and throws std::invalid_argument unless
// the indices were strictly ascending and below n. The codec is not full.
template <class I>
void encode_indices(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                    std::uint8_t* out, void* workspace, cudaStream_t stream);
std::uint64_t encoded_bytes(const void* workspace, cudaStream_t stream);

// Decode exactly `size` bytes into k indices. The bytes may be hostile: check_decoded waits and
// throws FormatError unless they encode exactly k ascending indices below n; nothing has been
// written then.
template <class I>
void decode_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                    Codec codec, I* out, void* workspace, cudaStream_t stream);
void check_decoded(const void* workspace, cudaStream_t stream);

// The checks of decode_indices without a place for the indices.
void validate_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                      Codec codec, void* workspace, cudaStream_t stream);

// dense[index] += scale * values[j] for the j-th index; the values are the bytes of k values of a
// type that decodes to T. As for decode_indices, nothing is written unless all indices are good.
template <class T>
void decode_scatter_add(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                        Codec codec, ValueType type, const std::uint8_t* values, T scale, T* dense,
                        void* workspace, cudaStream_t stream);

}  // namespace paropt::cuda
