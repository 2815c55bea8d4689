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

// Whether the indices rise, and the last one is below n.
template <class I>
PAROPT_TARGET bool rising(const I* indices, std::size_t k, std::size_t n) {
  bool falls = k > 0 && indices[k - 1] >= n;
  for (std::size_t i = 1; i < k; ++i) falls |= indices[i] <= indices[i - 1];
  return !falls;
}

// Add the entries below `end`, from entry `at` on, to a block that begins at element `begin`, and
// return where they end.
template <class T, class I>
PAROPT_TARGET std::size_t add_below(T* block, std::size_t begin, std::size_t end, const I* indices,
                                    const T* values, std::size_t at, std::size_t k, T scale) {
  for (; at < k && indices[at] < end; ++at) block[indices[at] - begin] += scale * values[at];
  return at;
}

// List the entries of a block that are not zero, and their places from `first` on; return how many.
template <class T, class I>
PAROPT_TARGET std::size_t take_nonzeros(const T* block, std::size_t count, I first, I* indices,
                                        T* values) {
  std::uint16_t places[kBlock / sizeof(T) + kPlaceSlack];
  std::uint16_t* end = places;
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    end = append_ones<true>(at_least64(block + i, KeyOf<T>{1}), i, end);
  }
  if (i < count) end = append_ones<true>(at_least(block + i, count - i, KeyOf<T>{1}), i, end);
  const auto found = static_cast<std::size_t>(end - places);
  for (std::size_t j = 0; j < found; ++j) {
    indices[j] = static_cast<I>(first + places[j]);
    values[j] = block[places[j]];
  }
  return found;
}

// Copy past the caches; `out` is aligned to a cache line, `bytes` a multiple of it.
PAROPT_TARGET void stream_lines(char* out, const char* in, std::size_t bytes) {
#if PAROPT_LEVEL == 2
  for (std::size_t at = 0; at < bytes; at += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), _mm512_loadu_si512(in + at));
  }
#elif PAROPT_LEVEL == 1
  for (std::size_t at = 0; at < bytes; at += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at)));
  }
#else
  std::memcpy(out, in, bytes);
#endif
}

// 64 sums side by side, so that no addition waits for another.
PAROPT_TARGET float sum_all(const float* in, std::size_t n) {
  float sums[64] = {}, total = 0;
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (std::size_t j = 0; j < 64; j += 16) fetch_ahead(in + i + j);
    for (std::size_t j = 0; j < 64; ++j) sums[j] += in[i + j];
  }
  for (; i < n; ++i) total += in[i];
  for (const float sum : sums) total += sum;
  return total;
}
