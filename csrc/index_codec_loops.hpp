// The loops of index_codec.cpp; see foreach_isa.hpp. `start` is always the first position that an
// index may have: one past its predecessor.

template <class I>
PAROPT_TARGET bool ascending(const I* indices, std::size_t count) {
  bool fine = true;
  for (std::size_t i = 1; i < count; ++i) fine &= indices[i - 1] < indices[i];
  return fine;
}

// Sum of the quotients of a block's gaps for the parameters l and l + 1.
template <class I>
PAROPT_TARGET void quotient_sums(const I* indices, std::size_t count, std::uint64_t start,
                                 unsigned l, std::uint64_t* sums) {
  const I first = indices[0] - static_cast<I>(start);
  std::uint64_t sum = first >> l, next = first >> l >> 1;
  for (std::size_t i = 1; i < count; ++i) {
    const I quotient = static_cast<I>(indices[i] - indices[i - 1] - 1) >> l;
    sum += quotient;
    next += quotient >> 1;
  }
  sums[0] = sum;
  sums[1] = next;
}

// Write the low bits of a block's gaps and their unary quotients to streams that are zero on entry
// and have room for a whole word past their last bit.
template <class I>
PAROPT_TARGET void encode_block(const I* indices, std::size_t count, std::uint64_t start,
                                unsigned l, std::uint8_t* lows, std::uint8_t* unary) {
  const std::uint64_t mask = (std::uint64_t{1} << l) - 1;
  std::size_t low_bit = 0, unary_bit = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t gap = indices[i] - start;
    start = std::uint64_t{indices[i]} + 1;
    std::uint8_t* word = lows + (low_bit >> 3);
    store(word, load<std::uint64_t>(word) | (gap & mask) << (low_bit & 7));
    low_bit += l;
    unary_bit += static_cast<std::size_t>(gap >> l);
    unary[unary_bit >> 3] |= static_cast<std::uint8_t>(1u << (unary_bit & 7));
    ++unary_bit;
  }
}

PAROPT_TARGET std::size_t count_ones(const std::uint8_t* bytes, std::size_t size) {
  std::size_t ones = 0, i = 0;
  for (; i + 8 <= size; i += 8) ones += __builtin_popcountll(load<std::uint64_t>(bytes + i));
  for (; i < size; ++i) ones += __builtin_popcount(bytes[i]);
  return ones;
}

// Decode a block whose unary stream holds exactly `count` ones, and return the position after its
// last index. Both streams are readable for a whole word past their last bit.
template <class I>
PAROPT_TARGET std::uint64_t decode_block(const std::uint8_t* lows, const std::uint8_t* unary,
                                         std::size_t count, std::uint64_t start, unsigned l,
                                         I* out) {
  const std::uint64_t mask = (std::uint64_t{1} << l) - 1;
  std::uint64_t word = load<std::uint64_t>(unary);
  std::uint64_t word_first = 0, past = 0;  // in the unary stream: bit 0 of word, after the last one
  std::size_t low_bit = 0;
  for (std::size_t i = 0; i < count; ++i) {
    while (word == 0) {
      unary += 8;
      word_first += 64;
      word = load<std::uint64_t>(unary);
    }
    const std::uint64_t one = word_first + static_cast<unsigned>(__builtin_ctzll(word));
    word &= word - 1;
    const std::uint64_t low = load<std::uint64_t>(lows + (low_bit >> 3)) >> (low_bit & 7) & mask;
    low_bit += l;
    const std::uint64_t index = start + ((one - past) << l) + low;
    past = one + 1;
    start = index + 1;
    out[i] = static_cast<I>(index);
  }
  return start;
}

// Positions of the ones among `size` bytes of a bitmap; `first` is the position of its first bit.
template <class I>
PAROPT_TARGET std::size_t list_ones(const std::uint8_t* bytes, std::size_t size,
                                    std::uint64_t first, I* out) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, size - i < 8 ? size - i : 8);
    for (; word != 0; word &= word - 1) {
      out[found++] = static_cast<I>(first + 8 * i + static_cast<unsigned>(__builtin_ctzll(word)));
    }
  }
  return found;
}

template <class I>
PAROPT_TARGET void set_ones(const I* indices, std::size_t k, std::uint8_t* bytes) {
  for (std::size_t i = 0; i < k; ++i) {
    bytes[indices[i] >> 3] |= static_cast<std::uint8_t>(1u << (indices[i] & 7));
  }
}

template <class T, class I>
PAROPT_TARGET void scatter_block(T* dense, const I* indices, const std::uint8_t* values,
                                 std::size_t count, T scale) {
  for (std::size_t i = 0; i < count; ++i) {
    dense[indices[i]] += scale * load<T>(values + i * sizeof(T));
  }
}
