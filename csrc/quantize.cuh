// quantize.hpp for arrays on the GPU: the same bytes and the same residual, bit for bit. Encoded
// values are aligned to 8 bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quantize.hpp"

namespace paropt::cuda {

// Bytes of workspace for quantize; aligned to 8.
constexpr std::size_t kQuantizeWorkspace = 16;

// paropt::quantize in order on `stream`: returns at once.
void quantize(ValueType type, const float* values, float* residual, std::size_t count,
              std::uint64_t seed, std::uint8_t* out, void* workspace, cudaStream_t stream);

// What the last quantize with this workspace counted. Waits for it.
QuantizeCounts quantize_counts(const void* workspace, cudaStream_t stream);

// Read all `count` values, in order on `stream`; the type is not float64. The spare bits are those
// of validate_values.
void dequantize(ValueType type, const std::uint8_t* data, std::size_t count, float* out,
                cudaStream_t stream);

// paropt::validate_values. Waits for the stream where there are spare bits.
void validate_values(ValueType type, const std::uint8_t* data, std::size_t count,
                     cudaStream_t stream);

}  // namespace paropt::cuda
