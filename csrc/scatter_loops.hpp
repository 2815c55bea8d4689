// Additions at positions far apart; see foreach_isa.hpp.

constexpr std::size_t kScatterAhead = 128;  // entries

// dense[indices[i]] += scale * values[i] for i < count, where `known` indices stand in the list: a
// processor that waits for some lines does not see far enough ahead to ask for the next ones.
template <class T, class I>
PAROPT_TARGET inline void scatter_block(T* dense, const I* indices, const T* values,
                                        std::size_t count, std::size_t known, T scale) {
  std::size_t i = 0;
  for (; i < count && i + kScatterAhead < known; ++i) {
    __builtin_prefetch(dense + indices[i + kScatterAhead], 1);
    dense[indices[i]] += scale * values[i];
  }
  for (; i < count; ++i) dense[indices[i]] += scale * values[i];
}
