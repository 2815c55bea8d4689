// Values in fewer bits, for the values of a sparse message or for a dense vector.
//
// docs/wire-format.md fixes the bytes. float16 and bfloat16 are plain conversions; the others share
// a scale among 256 values, and all scales stand before all codes. With a residual, error feedback
// is part of the same pass: what rounding loses stays there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paropt {

enum class ValueType : std::uint8_t {
  float32 = 1,
  float64 = 2,
  float16 = 3,   // beyond the range: the largest finite number, and counted
  bfloat16 = 4,  // the same
  int8 = 5,      // scale: largest magnitude / 127
  qsgd4 = 6,     // scale: largest magnitude / 7; rounded up or down at random, without bias
  sign = 7,      // scale: mean magnitude
};
constexpr int kValueTypes = 7;

// Values that a caller should hear of: finite ones beyond the range of a 16-bit type, and infinite
// or NaN ones.
struct QuantizeCounts {
  std::size_t saturated = 0, nonfinite = 0;
};

// Bytes of `count` values.
std::uint64_t value_bytes(ValueType type, std::uint64_t count);

// Write acc = values, or residual + values, to value_bytes bytes; with a residual, leave there
// acc less what the bytes say. A non-finite value makes its
// float16 or bfloat16 non-finite, and all 256 that share its scale NaN; the residual then keeps acc
// where that is finite and 0 where it is not. The result depends on the seed (of
// qsgd4), not on the number of threads. `type` is none of the first two.
QuantizeCounts quantize(ValueType type, const float* values, float* residual, std::size_t count,
                        std::uint64_t seed, std::uint8_t* out);

// Read the values [first, first + count) of `total`; float32 may be read too.
void dequantize(ValueType type, const std::uint8_t* data, std::size_t total, std::size_t first,
                std::size_t count, float* out);

// Throws FormatError unless the bits that no value takes are zero. Any other bytes are values.
void validate_values(ValueType type, const std::uint8_t* data, std::size_t total);

}  // namespace paropt
