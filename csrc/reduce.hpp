// Sums of dense and of sparse vectors, in place. T is float or double.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paropt {

// out[i] += in[i] for i < n. The arrays do not overlap, or are the same. The result does not depend
// on the number of threads.
template <class T>
void add(T* out, const T* in, std::size_t n);

// dense[indices[i]] += scale * values[i] for i < k, in this order; an index may occur repeatedly.
// The product is rounded before it is added. I is std::uint32_t or std::uint64_t. Throws
// std::invalid_argument, before anything is written, when an index is not below n.
template <class T, class I>
void scatter_add(T* dense, std::size_t n, const I* indices, const T* values, std::size_t k,
                 T scale);

// The sum in any order: a plain read at the speed of the memory, what the benchmarks compare with.
float read_all(const float* in, std::size_t n);

}  // namespace paropt
