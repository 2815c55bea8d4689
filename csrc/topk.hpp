// The k entries of largest magnitude of a vector, exact, in one pass over it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"

namespace paropt {

// What one search leaves for the next one over a vector that has changed little since: between
// calls it is the caller's to keep. All zero at first; any content is safe, the result never
// depends on it.
struct Hint {
  std::uint64_t n, k, type;   // of the search that left it: another one does not use it
  std::uint64_t cut, margin;  // the least key that won, and how far below to start the next time
};

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
// max(2k, k + 16384) entries and 1 MB per thread, 16 bytes per 16384 entries of acc included; the
// calling thread keeps it for its next call. T is float, double, Float16 or BFloat16.
template <class T, class I>
std::size_t topk(const T* gradient, T* residual, std::size_t n, std::size_t k, I* indices,
                 T* values, Hint* hint = nullptr);

// Entries whose key reaches a bound, and those that are infinite or NaN.
struct Reach {
  std::size_t found, nonfinite;
};

// Count them in acc; with a residual, residual is left as acc = residual + gradient.
template <class T>
Reach reach_count(const T* gradient, T* residual, std::size_t n, KeyOf<T> bound);

// List all that were found, ascending. With `clear`, which is acc then, they are set to 0 there.
template <class T, class I>
void reach_take(const T* acc, T* clear, std::size_t n, KeyOf<T> bound, I* indices, T* values);

}  // namespace paropt
