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

// A sparse vector: its entries by strictly ascending index. I is std::uint32_t or std::uint64_t.
template <class T, class I>
struct Sparse {
  const I* indices;
  const T* values;
  std::size_t k;
};

// dense = scale * (sum of the vectors), overwriting what was there: bit for bit what scatter_add of
// one vector after the other makes of zeros. Dense is written once, block by block, past the caches
// where it is long. Throws std::invalid_argument, before anything is written, unless the indices of
// each vector are strictly ascending and below n.
template <class T, class I>
void scatter_sum(T* dense, std::size_t n, const Sparse<T, I>* vectors, std::size_t count, T scale);

// The entries of that sum, of scale 1, that are not zero, by ascending index; returns their number.
// `indices` and `values` have room for the entries of all vectors and overlap none of them. Takes
// no longer for a longer vector, unless its entries are so few that hardly any two share a block.
// Throws as scatter_sum.
template <class T, class I>
std::size_t merge_sum(std::size_t n, const Sparse<T, I>* vectors, std::size_t count, I* indices,
                      T* values);

// The sum in any order: a plain read at the speed of the memory, what the benchmarks compare with.
float read_all(const float* in, std::size_t n);

}  // namespace paropt
