// The loops of reduce.cpp; see foreach_isa.hpp.

template <class T>
PAROPT_TARGET void add_block(T* out, const T* in, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] += in[i];
}

template <class I>
PAROPT_TARGET I largest(const I* indices, std::size_t k) {
  I most = 0;
  for (std::size_t i = 0; i < k; ++i) most = indices[i] > most ? indices[i] : most;
  return most;
}

template <class T, class I>
PAROPT_TARGET void scatter_add_block(T* dense, const I* indices, const T* values, std::size_t k,
                                     T scale) {
  std::size_t i = 0;  // far lines: a processor that waits for some does not see far enough ahead
  for (; i + kScatterAhead < k; ++i) {
    __builtin_prefetch(dense + indices[i + kScatterAhead], 1);
    dense[indices[i]] += scale * values[i];
  }
  for (; i < k; ++i) dense[indices[i]] += scale * values[i];
}

// 64 sums side by side, so that no addition waits for another.
PAROPT_TARGET float sum_all(const float* in, std::size_t n) {
  float sums[64] = {}, total = 0;
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (std::size_t j = 0; j < 64; ++j) sums[j] += in[i + j];
  }
  for (; i < n; ++i) total += in[i];
  for (const float sum : sums) total += sum;
  return total;
}
