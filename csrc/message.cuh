// The checksum of messages on the GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace paropt::cuda {

// Write the CRC-32 of zlib and Ethernet of `size` bytes to *crc, in order on `stream`. The four
// bytes from `hole` on count as zero, so that *crc may be there; a hole behind the end is none.
void crc32(const std::uint8_t* data, std::size_t size, std::size_t hole, std::uint32_t* crc,
           cudaStream_t stream);

}  // namespace paropt::cuda
