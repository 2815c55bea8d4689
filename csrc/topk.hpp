// The k entries of largest magnitude of a vector, exact, in one pass over it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paropt {

// Write the positions and values of the k largest entries of `acc` to indices and values, k each,
// positions ascending, and return how many entries of acc are infinite or NaN.
//
// acc is gradient when residual is null. Otherwise acc = residual + gradient, and residual is left
// as acc with the selected entries set to 0; it must not overlap gradient.
//
// Magnitudes are compared by key (see FloatBits), among equal ones the lowest position wins. The
// result does not depend on the number of threads.
//
// k <= n. I is std::uint32_t (n <= 2^32) or std::uint64_t. Working memory: at most
// max(2k, k + 16384) entries, 16384 entries per thread, and 24 bytes per 16384 entries of acc.
template <class T, class I>
std::size_t topk(const T* gradient, T* residual, std::size_t n, std::size_t k, I* indices,
                 T* values);

}  // namespace paropt
