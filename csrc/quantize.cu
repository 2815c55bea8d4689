// Values in fewer bits. A warp has a group of 256 values, which share a scale, in its registers:
// eight for each lane. For sign, whose scale is a sum in the order of the CPU, half a warp has a
// group, and a lane one of the 16 sums that the order asks for.

#include "quantize.cuh"
#include "quantize_scalars.hpp"
#include "quantize_values.cuh"

namespace paropt::cuda {
namespace {

constexpr unsigned kFour = Vector<float>::kCount;
constexpr unsigned kRows = 16;    // of 16 values: a group in the order of its sum
constexpr unsigned kVectors = 4;  // loads of a thread in flight

static_assert(sizeof(QuantizeCounts) == kQuantizeWorkspace, "counts are kept as they are read");

struct Counts {
  Count saturated, nonfinite;
};

// ---- one value ---------------------------------------------------------------------------------

template <class Half>
constexpr std::uint32_t kBeyond = 0x477ff000;  // least key that rounds to infinity: 65520
template <>
constexpr std::uint32_t kBeyond<BFloat16> = 0x7f7f8000;
template <class Half>
constexpr std::uint32_t kLargest = 0x477fe000;  // key of the largest finite number: 65504
template <>
constexpr std::uint32_t kLargest<BFloat16> = 0x7f7f0000;

// ---- kernels -----------------------------------------------------------------------------------

__device__ Vector<float> load_sum(const float* values, const float* residual, std::size_t first,
                                  std::size_t count, bool aligned) {
  Vector<float> acc = load_vector(values, first, count, aligned);
  if (residual == nullptr) return acc;
  const Vector<float> addend = load_vector(residual, first, count, aligned);
#pragma unroll
  for (unsigned i = 0; i < kFour; ++i) acc.at[i] = addend.at[i] + acc.at[i];
  return acc;
}

__device__ void add_to(Count* counter, unsigned mine) {
  const unsigned all = block_sum(mine);
  if (threadIdx.x == 0 && all > 0) atomicAdd(counter, Count{all});
}

// Write the bytes of a code word that belong to values below `count`.
template <class Word>
__device__ void store_codes(std::uint8_t* codes, std::size_t at, std::size_t bytes, Word word) {
  if (at + sizeof(Word) <= bytes) {
    *reinterpret_cast<Word*>(codes + at) = word;
    return;
  }
  for (; at < bytes; ++at, word = static_cast<Word>(word >> 8)) {
    codes[at] = static_cast<std::uint8_t>(word);
  }
}

template <class Half>
__global__ void __launch_bounds__(kThreads)
    half_kernel(const float* values, float* residual, std::size_t count, Half* out,
                Counts* counts) {
  constexpr unsigned kEach = Vector<Half>::kCount;
  const bool aligned = vectors_fit(values) && vectors_fit(residual), fits = vectors_fit(out);
  unsigned saturated = 0, nonfinite = 0;
  for (std::size_t first = grid_thread() * kEach; first < count; first += grid_threads() * kEach) {
    Vector<float> acc[2];
    Vector<Half> halves;
#pragma unroll
    for (unsigned v = 0; v < 2; ++v) {
      acc[v] = load_sum(values, residual, first + v * kFour, count, aligned);
    }
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
      float& x = acc[i / kFour].at[i % kFour];
      const bool beyond = is_finite(x) && key_of(x) >= kBeyond<Half>;
      saturated += beyond;
      nonfinite += !is_finite(x);
      const float largest = float_of(kLargest<Half> | (bits_of(x) & 0x80000000));
      halves.at[i] = rounded<Half>(beyond ? largest : x);
      x = kept(x, to_float(halves.at[i]));
    }
    store_vector(out, first, count, fits, halves);
    if (residual == nullptr) continue;
#pragma unroll
    for (unsigned v = 0; v < 2; ++v) {
      store_vector(residual, first + v * kFour, count, aligned, acc[v]);
    }
  }
  add_to(&counts->saturated, saturated);
  add_to(&counts->nonfinite, nonfinite);
}

// Four values as codes of int8 or qsgd4; `place` is that of the first in its group.
template <ValueType kType>
__device__ std::uint32_t encode_four(const Vector<float>& x, float by, std::uint32_t random,
                                     unsigned place) {
  std::uint32_t word = 0;
#pragma unroll
  for (unsigned i = 0; i < kFour; ++i) {
    const int unit = nearest(x.at[i] * by);
    if (kType == ValueType::int8) {
      word |= (static_cast<std::uint32_t>(unit) & 255) << 8 * i;
    } else {
      // One random word serves two values.
      const std::uint32_t noise = mixed(random + (place + i) / 2 * kGolden) >> 16 * (i % 2);
      const std::uint32_t units = static_cast<std::uint32_t>(unit) + (noise >> 4 & 0xfff);
      word |= (units >> 12 & 15) << 4 * i;
    }
  }
  return word;
}

template <ValueType kType>
__global__ void __launch_bounds__(kThreads)
    scaled_kernel(const float* values, float* residual, std::size_t count, std::uint64_t seed,
                  float* scales, std::uint8_t* codes, Counts* counts) {
  constexpr bool kBytes = kType == ValueType::int8;
  constexpr unsigned kBits = kBytes ? 8 : 4;
  const bool aligned = vectors_fit(values) && vectors_fit(residual);
  const std::size_t groups = ceil_div(count, kGroup), bytes = ceil_div(count * kBits, 8);
  unsigned nonfinite = 0;
  for (std::size_t group = grid_thread() / kWarp; group < groups; group += grid_threads() / kWarp) {
    Vector<float> acc[2];
    std::uint32_t most = 0;
#pragma unroll
    for (unsigned v = 0; v < 2; ++v) {
      const std::size_t first = group * kGroup + (v * kWarp + lane_number()) * kFour;
      acc[v] = load_sum(values, residual, first, count, aligned);
      for (float x : acc[v].at) most = key_of(x) > most ? key_of(x) : most;
    }
    for (unsigned by = kWarp / 2; by > 0; by /= 2) {
      const std::uint32_t other = __shfl_xor_sync(kAllLanes, most, by);
      most = other > most ? other : most;
    }
    const float scale = scale_for(most, kBytes ? 127 : 7, kBytes ? 0x1p-126f : kLeastQsgdScale);
    const float by = (kBytes ? 1 : kQsgdUnit) / scale;
    const std::uint32_t random = kBytes ? 0 : group_random(seed, group);
    if (lane_number() == 0) scales[group] = scale;
#pragma unroll
    for (unsigned v = 0; v < 2; ++v) {
      const unsigned place = (v * kWarp + lane_number()) * kFour;
      const std::size_t first = group * kGroup + place;
      const std::uint32_t word = scale > 0 ? encode_four<kType>(acc[v], by, random, place) : 0;
      if (kBytes) {
        store_codes(codes, first, bytes, word);
      } else {
        store_codes(codes, first / 2, bytes, static_cast<std::uint16_t>(word));
      }
#pragma unroll
      for (unsigned i = 0; i < kFour; ++i) {
        float& x = acc[v].at[i];
        nonfinite += !is_finite(x);
        const unsigned code = word >> kBits * i & ((1u << kBits) - 1);
        x = kept(x, scaled_value(kType, code, scale == scale ? scale : 0));
      }
      if (residual != nullptr) store_vector(residual, first, count, aligned, acc[v]);
    }
  }
  add_to(&counts->nonfinite, nonfinite);
}

// The sum of the 256 magnitudes of a group times `by`: 16 sums side by side, then by halves. The
// lanes of half a warp get the same.
__device__ float sum_magnitudes(const float* x, float by) {
  float sum = 0;
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) sum += float_of(key_of(x[row])) * by;
  for (unsigned half = kRows / 2; half > 0; half /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, half, kRows);
  }
  return __shfl_sync(kAllLanes, sum, 0, kRows);
}

// The mean magnitude of `count` finite values, NaN for others.
__device__ float mean_magnitude(const float* x, unsigned count, bool all_finite) {
  const auto divisor = static_cast<float>(count);
  const float mean = sum_magnitudes(x, 1) / divisor;
  const float small = sum_magnitudes(x, 0x1p-8f) / divisor;
  if (!all_finite) return float_of(0x7fc00000);
  if (is_finite(mean)) return mean;
  // The sum of 256 is too large a number, the mean of them is none.
  return small < 0x1p120f ? small * 0x1p8f : float_of(0x7f7fffff);
}

__global__ void __launch_bounds__(kThreads)
    sign_kernel(const float* values, float* residual, std::size_t count, float* scales,
                std::uint8_t* codes, Counts* counts) {
  const unsigned column = lane_number() % kRows, half = lane_number() / kRows;
  const std::size_t groups = ceil_div(count, kGroup), bytes = ceil_div(count, 8);
  unsigned nonfinite = 0;
  // A warp goes on while one of its two groups is there.
  for (std::size_t pair = grid_thread() / kWarp; 2 * pair < groups;
       pair += grid_threads() / kWarp) {
    const std::size_t group = 2 * pair + half, first = group * kGroup + column;
    float x[kRows];
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      const std::size_t at = first + row * kRows;
      x[row] = at < count ? values[at] : 0;
      if (residual != nullptr && at < count) x[row] = residual[at] + x[row];
    }
    unsigned bad = 0, minus = 0;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      bad += !is_finite(x[row]);
      const unsigned ballot = __ballot_sync(kAllLanes, bits_of(x[row]) >> 31 != 0);
      if (row == column) minus = ballot >> (half * kRows) & 0xffff;
    }
    nonfinite += bad;
    const unsigned bad_lanes = __ballot_sync(kAllLanes, bad > 0) >> (half * kRows) & 0xffff;
    const std::size_t rest = group < groups ? count - group * kGroup : 1;
    const unsigned size = rest < kGroup ? static_cast<unsigned>(rest) : kGroup;
    const float scale = mean_magnitude(x, size, bad_lanes == 0);
    if (group >= groups) continue;
    if (column == 0) scales[group] = scale;
    store_codes(codes, group * (kGroup / 8) + column * 2, bytes, static_cast<std::uint16_t>(minus));
    if (residual == nullptr) continue;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      const std::size_t at = first + row * kRows;
      const float sent = sign_value(bits_of(x[row]) >> 31, scale == scale ? scale : 0);
      if (at < count) residual[at] = kept(x[row], sent);
    }
  }
  add_to(&counts->nonfinite, nonfinite);
}

template <ValueType kType>
constexpr unsigned kCodeBits = kType == ValueType::int8    ? 8
                               : kType == ValueType::qsgd4 ? 4
                               : kType == ValueType::sign  ? 1
                                                           : 16;

// The codes of four values that are all there; `first` is a multiple of four.
template <ValueType kType>
__device__ std::uint64_t load_codes(const std::uint8_t* codes, std::size_t first) {
  if constexpr (kCodeBits<kType> == 16)
    return reinterpret_cast<const std::uint64_t*>(codes)[first / 4];
  if constexpr (kCodeBits<kType> == 8)
    return reinterpret_cast<const std::uint32_t*>(codes)[first / 4];
  if constexpr (kCodeBits<kType> == 4)
    return reinterpret_cast<const std::uint16_t*>(codes)[first / 4];
  return codes[first / 8] >> first % 8;
}

template <ValueType kType>
__device__ Vector<float> decode_four(const Values& values, std::size_t first) {
  Vector<float> out = {};
  if (first + kFour > values.count) {
    for (unsigned i = 0; first + i < values.count; ++i) out.at[i] = value_at(values, first + i);
    return out;
  }
  const std::uint64_t codes = load_codes<kType>(values.codes(), first);
  const float* scales = reinterpret_cast<const float*>(values.data);
  const float scale = kCodeBits<kType> == 16 ? 0 : scales[first / kGroup];
#pragma unroll
  for (unsigned i = 0; i < kFour; ++i) {
    const auto code =
        static_cast<unsigned>(codes >> kCodeBits<kType> * i) & ((1u << kCodeBits<kType>)-1);
    const auto bits = static_cast<std::uint16_t>(code);
    out.at[i] = kType == ValueType::float16    ? to_float(Float16{bits})
                : kType == ValueType::bfloat16 ? to_float(BFloat16{bits})
                                               : scaled_value(kType, code, scale);
  }
  return out;
}

template <ValueType kType>
__global__ void __launch_bounds__(kThreads) decode_kernel(Values values, float* out) {
  values.type = kType;  // known to the compiler
  const bool aligned = vectors_fit(out);
  const std::size_t stride = grid_threads() * kFour;
  for (std::size_t start = grid_thread() * kFour; start < values.count;
       start += kVectors * stride) {
    Vector<float> decoded[kVectors];
#pragma unroll
    for (unsigned v = 0; v < kVectors; ++v) {
      decoded[v] = decode_four<kType>(values, start + v * stride);
    }
#pragma unroll
    for (unsigned v = 0; v < kVectors; ++v) {
      store_vector(out, start + v * stride, values.count, aligned, decoded[v]);
    }
  }
}

// ---- launchers ---------------------------------------------------------------------------------

unsigned grid_of_groups(std::size_t count, unsigned groups_per_block) {
  return grid_for(ceil_div(ceil_div(count, kGroup), groups_per_block));
}

unsigned bits_of_code(ValueType type) {
  constexpr unsigned kBits[] = {0, 32, 64, 16, 16, 8, 4, 1};
  return kBits[static_cast<int>(type)];
}

}  // namespace

void quantize(ValueType type, const float* values, float* residual, std::size_t count,
              std::uint64_t seed, std::uint8_t* out, void* workspace, cudaStream_t stream) {
  auto* counts = static_cast<Counts*>(workspace);
  CUDA_CHECK(cudaMemsetAsync(counts, 0, sizeof *counts, stream));
  if (count == 0) return;
  auto* scales = reinterpret_cast<float*>(out);
  std::uint8_t* codes = out + ceil_div(count, kGroup) * sizeof(float);
  const unsigned halves = grid_for(ceil_div(count, kThreads * Vector<Float16>::kCount));
  if (type == ValueType::float16) {
    launch(half_kernel<Float16>, halves, stream, values, residual, count,
           reinterpret_cast<Float16*>(out), counts);
  } else if (type == ValueType::bfloat16) {
    launch(half_kernel<BFloat16>, halves, stream, values, residual, count,
           reinterpret_cast<BFloat16*>(out), counts);
  } else if (type == ValueType::int8) {
    launch(scaled_kernel<ValueType::int8>, grid_of_groups(count, kWarps), stream, values, residual,
           count, seed, scales, codes, counts);
  } else if (type == ValueType::qsgd4) {
    launch(scaled_kernel<ValueType::qsgd4>, grid_of_groups(count, kWarps), stream, values, residual,
           count, seed, scales, codes, counts);
  } else {
    launch(sign_kernel, grid_of_groups(count, 2 * kWarps), stream, values, residual, count, scales,
           codes, counts);
  }
}

QuantizeCounts quantize_counts(const void* workspace, cudaStream_t stream) {
  const Counts counts = fetch(static_cast<const Counts*>(workspace), stream);
  return {static_cast<std::size_t>(counts.saturated), static_cast<std::size_t>(counts.nonfinite)};
}

void dequantize(ValueType type, const std::uint8_t* data, std::size_t count, float* out,
                cudaStream_t stream) {
  if (count == 0) return;
  const Values values = {type, data, count};
  const unsigned grid = grid_for(ceil_div(count, kThreads * kVectors * kFour));
  switch (type) {
    case ValueType::float16:
      return launch(decode_kernel<ValueType::float16>, grid, stream, values, out);
    case ValueType::bfloat16:
      return launch(decode_kernel<ValueType::bfloat16>, grid, stream, values, out);
    case ValueType::int8:
      return launch(decode_kernel<ValueType::int8>, grid, stream, values, out);
    case ValueType::qsgd4:
      return launch(decode_kernel<ValueType::qsgd4>, grid, stream, values, out);
    case ValueType::sign:
      return launch(decode_kernel<ValueType::sign>, grid, stream, values, out);
    default:
      CUDA_CHECK(
          cudaMemcpyAsync(out, data, count * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  }
}

void validate_values(ValueType type, const std::uint8_t* data, std::size_t count,
                     cudaStream_t stream) {
  const std::size_t bits = count * bits_of_code(type), spare = (8 - bits % 8) % 8;
  if (spare == 0) return;
  const std::uint8_t* codes = Values{type, data, count}.codes();
  const std::uint8_t last = fetch(codes + bits / 8, stream);
  if (last >> (8 - spare) != 0) throw FormatError("spare bits after the values must be zero");
}

}  // namespace paropt::cuda
