// What one value of each type is; docs/wire-format.md. Shared by the kernels that read values.
#pragma once

#include "cuda_common.cuh"
#include "quantize.hpp"

namespace paropt::cuda {

constexpr unsigned kGroup = 256;  // values with one scale

// Encoded values of any type.
struct Values {
  ValueType type;
  const std::uint8_t* data;
  std::size_t count;

  PAROPT_HOST_DEVICE const std::uint8_t* codes() const {
    return type < ValueType::int8 ? data : data + ceil_div(count, kGroup) * sizeof(float);
  }
};

__device__ __forceinline__ float int8_value(unsigned code, float scale) {
  return static_cast<float>(static_cast<std::int8_t>(code)) * scale;
}

__device__ __forceinline__ float qsgd4_value(unsigned code, float scale) {
  return static_cast<float>(static_cast<int>(code ^ 8) - 8) * scale;
}

__device__ __forceinline__ float sign_value(unsigned code, float scale) {
  return float_of(bits_of(scale) ^ code << 31);
}

__device__ __forceinline__ float scaled_value(ValueType type, unsigned code, float scale) {
  if (type == ValueType::int8) return int8_value(code, scale);
  return type == ValueType::qsgd4 ? qsgd4_value(code, scale) : sign_value(code, scale);
}

// The i-th value.
__device__ inline float value_at(const Values& values, std::size_t i) {
  const std::uint8_t* codes = values.codes();
  if (values.type == ValueType::float32) return reinterpret_cast<const float*>(codes)[i];
  if (values.type == ValueType::float16)
    return to_float(reinterpret_cast<const Float16*>(codes)[i]);
  if (values.type == ValueType::bfloat16) {
    return to_float(reinterpret_cast<const BFloat16*>(codes)[i]);
  }
  const float scale = reinterpret_cast<const float*>(values.data)[i / kGroup];
  if (values.type == ValueType::int8) return int8_value(codes[i], scale);
  if (values.type == ValueType::qsgd4) {
    return qsgd4_value(codes[i / 2] >> (4 * (i % 2)) & 15u, scale);
  }
  return sign_value(codes[i / 8] >> (i % 8) & 1u, scale);
}

}  // namespace paropt::cuda
