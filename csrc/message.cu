// The CRC-32 of bytes on the device. A CRC is a polynomial: every thread takes the remainder of a
// piece, multiplies it by the power of x that the bytes behind it are worth, and all are added up.

#include "cuda_common.cuh"
#include "message.cuh"

namespace paropt::cuda {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;  // bit 31 is x^0, bit 0 is x^31
constexpr std::uint32_t kOne = 0x80000000;
constexpr unsigned kPiece = 256;  // bytes of a thread

PAROPT_HOST_DEVICE constexpr std::uint32_t times_x(std::uint32_t a) {
  return (a & 1) != 0 ? a >> 1 ^ kPolynomial : a >> 1;
}

// a * b modulo the polynomial.
PAROPT_HOST_DEVICE constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result = 0;
  for (; a != 0; a <<= 1, b = times_x(b)) result ^= (a & kOne) != 0 ? b : 0;
  return result;
}

// at[i] is x^(8 * 2^i).
struct Powers {
  std::uint32_t at[64];
};

constexpr Powers make_powers() {
  Powers powers{};
  std::uint32_t power = kOne;
  for (int i = 0; i < 8; ++i) power = times_x(power);
  for (std::uint32_t& entry : powers.at) entry = power, power = product(power, power);
  return powers;
}

// x^(8 * bytes).
PAROPT_HOST_DEVICE inline std::uint32_t power_of_bytes(const Powers& powers, std::uint64_t bytes) {
  std::uint32_t power = kOne;
  for (unsigned i = 0; bytes != 0; bytes >>= 1, ++i) {
    if ((bytes & 1) != 0) power = product(power, powers.at[i]);
  }
  return power;
}

// The register before the first byte, moved behind the last, and the final complement.
__global__ void begin_kernel(Powers powers, std::size_t size, std::uint32_t* crc) {
  if (threadIdx.x == 0) *crc = ~product(0xffffffff, power_of_bytes(powers, size));
}

__global__ void __launch_bounds__(kThreads)
    crc_kernel(const std::uint8_t* data, std::size_t size, Powers powers, std::size_t hole,
               std::uint32_t* crc) {
  __shared__ std::uint32_t table[256];  // the register after a byte
  for (unsigned i = threadIdx.x; i < 256; i += kThreads) {
    std::uint32_t entry = i;
    for (int bit = 0; bit < 8; ++bit) entry = times_x(entry);
    table[i] = entry;
  }
  __syncthreads();
  std::uint32_t mine = 0;
  for (std::size_t piece = grid_thread(); piece * kPiece < size; piece += grid_threads()) {
    const std::size_t first = piece * kPiece;
    const std::size_t end = first + kPiece < size ? first + kPiece : size;
    std::uint32_t part = 0;
    for (std::size_t i = first; i < end; ++i) {
      const bool in_hole = i >= hole && i < hole + 4;
      part = table[(part ^ (in_hole ? 0u : data[i])) & 255] ^ part >> 8;
    }
    mine ^= product(part, power_of_bytes(powers, size - end));
  }
  for (unsigned by = kWarp / 2; by > 0; by /= 2) mine ^= __shfl_xor_sync(kAllLanes, mine, by);
  if (lane_number() == 0) atomicXor(crc, mine);
}

}  // namespace

void crc32(const std::uint8_t* data, std::size_t size, std::size_t hole, std::uint32_t* crc,
           cudaStream_t stream) {
  constexpr Powers powers = make_powers();
  launch(begin_kernel, 1, stream, powers, size, crc);
  if (size == 0) return;
  const std::size_t pieces = ceil_div(size, kPiece);
  launch(crc_kernel, grid_for(ceil_div(pieces, kThreads)), stream, data, size, powers, hole, crc);
}

}  // namespace paropt::cuda
