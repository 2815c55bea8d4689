#include "quantize.hpp"

#include <algorithm>
#include <type_traits>

#include "common.hpp"
#include "quantize_scalars.hpp"

namespace paropt {

constexpr std::size_t kGroup = 256;   // values with one scale
constexpr std::size_t kBatch = 4096;  // values whose codes fit the L1 cache

}  // namespace paropt

#define PAROPT_LOOPS "stream_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "quantize_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "half_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

constexpr std::size_t kChunk = 65536;  // values for a thread at a time; a multiple of kBatch

// From so many values on the codes go past the caches: input and output are larger than these.
constexpr std::size_t kStreamFrom = std::size_t{1} << 22;

// Streamed stores are not ordered with others.
void finish_streaming() {
#if PAROPT_X86
  _mm_sfence();
#endif
}

// Bits of one code; scaled types have their scales in front.
std::size_t code_bits(ValueType type) {
  constexpr std::size_t kBits[] = {0, 32, 64, 16, 16, 8, 4, 1};
  return kBits[static_cast<int>(type)];
}

std::size_t scale_bytes(ValueType type, std::size_t count) {
  return type >= ValueType::int8 ? ceil_div(count, kGroup) * sizeof(float) : 0;
}

struct Job {
  ValueType type;
  const float* values;
  float* residual;
  std::size_t count;
  std::uint64_t seed;
  std::uint8_t *scales, *codes;

  // Quantise the values [first, end), where first is a multiple of kBatch.
  QuantizeCounts range(std::size_t first, std::size_t end) const {
    const float* x = values + first;
    float* rest = residual == nullptr ? nullptr : residual + first;
    std::uint8_t* to = codes + first * code_bits(type) / 8;
    const bool stream = count >= kStreamFrom;
    if (type == ValueType::float16) {
      return PAROPT_DISPATCH(quantize_half<Float16>(x, rest, end - first, to, stream));
    }
    if (type == ValueType::bfloat16) {
      return PAROPT_DISPATCH(quantize_half<BFloat16>(x, rest, end - first, to, stream));
    }
    QuantizeCounts counts;
    for (; first < end; first += kBatch) {
      counts.nonfinite += batch(first, std::min(kBatch, end - first)).nonfinite;
    }
    return counts;
  }

  // Quantise at most kBatch values with scales. The codes are made in the cache, in whole groups:
  // padding becomes zeros, as spare bits must be.
  QuantizeCounts batch(std::size_t first, std::size_t part) const {
    alignas(64) std::uint8_t made[kBatch];
    const QuantizeCounts counts = encode(first, part, made);
    std::uint8_t* to = codes + first * code_bits(type) / 8;
    const std::size_t bytes = (part * code_bits(type) + 7) / 8;
    if (count < kStreamFrom) {
      std::memcpy(to, made, bytes);
    } else {
      PAROPT_DISPATCH(stream_bytes(to, made, bytes));
    }
    return counts;
  }

  QuantizeCounts encode(std::size_t first, std::size_t part, std::uint8_t* made) const {
    const float* x = values + first;
    float* rest = residual == nullptr ? nullptr : residual + first;
    const std::size_t group = first / kGroup;
    std::uint8_t* scale = scales + group * sizeof(float);
    switch (type) {
      case ValueType::int8:
        return PAROPT_DISPATCH(
            quantize_scaled<ValueType::int8>(x, rest, part, seed, group, scale, made));
      case ValueType::qsgd4:
        return PAROPT_DISPATCH(
            quantize_scaled<ValueType::qsgd4>(x, rest, part, seed, group, scale, made));
      default:
        return PAROPT_DISPATCH(
            quantize_scaled<ValueType::sign>(x, rest, part, seed, group, scale, made));
    }
  }
};

}  // namespace

std::uint64_t value_bytes(ValueType type, std::uint64_t count) {
  return scale_bytes(type, count) + (count * code_bits(type) + 7) / 8;
}

QuantizeCounts quantize(ValueType type, const float* values, float* residual, std::size_t count,
                        std::uint64_t seed, std::uint8_t* out) {
  const Job job = {type, values, residual, count, seed, out, out + scale_bytes(type, count)};
  const std::size_t chunks = ceil_div(count, kChunk);
  std::size_t saturated = 0, nonfinite = 0;
  [[maybe_unused]] const int threads = threads_for_entries(count);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) \
    reduction(+ : saturated, nonfinite)
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t end = std::min(count, (chunk + 1) * kChunk);
    const QuantizeCounts counts = job.range(chunk * kChunk, end);
    saturated += counts.saturated;
    nonfinite += counts.nonfinite;
    finish_streaming();
  }
  return {saturated, nonfinite};
}

void dequantize(ValueType type, const std::uint8_t* data, std::size_t total, std::size_t first,
                std::size_t count, float* out) {
  if (count == 0) return;
  if (type == ValueType::float32) {
    std::memcpy(out, data + first * sizeof(float), count * sizeof(float));
    return;
  }
  if (type == ValueType::float16) {
    PAROPT_DISPATCH(dequantize_half<Float16>(data + 2 * first, count, out));
    return;
  }
  if (type == ValueType::bfloat16) {
    PAROPT_DISPATCH(dequantize_half<BFloat16>(data + 2 * first, count, out));
    return;
  }
  const std::uint8_t* codes = data + scale_bytes(type, total);
  while (count > 0) {
    const std::size_t part = std::min(count, kGroup - first % kGroup);
    const float scale = load<float>(data + first / kGroup * sizeof(float));
    if (type == ValueType::int8) {
      PAROPT_DISPATCH(dequantize_int8(codes, first, part, scale, out));
    } else if (type == ValueType::qsgd4) {
      PAROPT_DISPATCH(dequantize_qsgd4(codes, first, part, scale, out));
    } else {
      PAROPT_DISPATCH(dequantize_sign(codes, first, part, scale, out));
    }
    first += part;
    out += part;
    count -= part;
  }
}

void validate_values(ValueType type, const std::uint8_t* data, std::size_t total) {
  const std::size_t spare = (8 - total * code_bits(type) % 8) % 8;
  if (spare == 0) return;
  if (data[value_bytes(type, total) - 1] >> (8 - spare) != 0) {
    throw FormatError("spare bits after the values must be zero");
  }
}

}  // namespace paropt
