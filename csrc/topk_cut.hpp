// The cut of top-k: the key of the k-th largest candidate. Part of topk.cpp, below its loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paropt {

constexpr std::size_t kMostKeys = 16384;  // in a list of keys
constexpr std::size_t kGuide = 2048;      // keys that guide the search among many more
constexpr unsigned kBinBits = 11;

// The key of rank k among m keys, 0 < k <= m, and how many of them are larger. The list is used up:
// each round spreads its keys over bins and keeps those of one bin.
template <class Key>
Cut<Key> cut_list(Key* keys, std::size_t m, std::size_t k, std::uint32_t* bins) {
  for (;;) {
    Key least, most;
    PAROPT_DISPATCH(key_range(keys, m, least, most));
    if (least == most) return {least, k};
    const unsigned width = bit_width(static_cast<Key>(most - least));
    const unsigned most_bits = m < 256 ? 6 : m < 2048 ? 8 : kBinBits;
    const unsigned shift = width > most_bits ? width - most_bits : 0;
    std::fill_n(bins, ((most - least) >> shift) + 1, 0);
    for (std::size_t i = 0; i < m; ++i) ++bins[static_cast<Key>(keys[i] - least) >> shift];
    std::size_t bin = static_cast<std::size_t>((most - least) >> shift);
    while (bins[bin] < k) k -= bins[bin--];
    const Key low = static_cast<Key>(least + (static_cast<Key>(bin) << shift));
    if (shift == 0) return {low, k};
    const Key high = static_cast<Key>(low + ((Key{1} << shift) - 1));
    std::size_t above = 0;
    m = PAROPT_DISPATCH(narrow(keys, m, low, high, keys, m, above));
  }
}

// The same for any number of values: each round spreads the keys that are still in question over
// bins and goes on in the bin of the cut, without a list.
template <class T>
Cut<T> cut_in_rounds(const T* values, std::size_t m, std::size_t k) {
  using Key = KeyOf<T>;
  Key least, most;
  PAROPT_DISPATCH(key_range(values, m, least, most));
  std::vector<std::size_t> bins(std::size_t{1} << kBinBits);
  while (least < most) {
    const unsigned width = bit_width(static_cast<Key>(most - least));
    const unsigned shift = width > kBinBits ? width - kBinBits : 0;
    std::fill(bins.begin(), bins.end(), 0);
    PAROPT_DISPATCH(histogram(values, m, least, most, shift, bins.data()));
    std::size_t bin = static_cast<std::size_t>((most - least) >> shift);
    while (bins[bin] < k) k -= bins[bin--];
    least = static_cast<Key>(least + (static_cast<Key>(bin) << shift));
    most = std::min<Key>(most, static_cast<Key>(least + ((Key{1} << shift) - 1)));
  }
  return {least, k};
}

// Of `size` sampled keys of m values choose two that most likely have the k-th largest between
// them. The list is used up.
template <class Key>
void guess_range(Key* keys, std::size_t size, double share, std::uint32_t* bins, Key& least,
                 Key& most) {
  const double rank = static_cast<double>(size) * share;
  const double slack = 4.5 * std::sqrt(rank * (1 - share)) + 4;
  Key copy[kGuide + kSlack];
  std::copy_n(keys, size, copy);
  if (rank > slack) most = cut_list(copy, size, static_cast<std::size_t>(rank - slack), bins).key;
  if (rank + slack + 1 < static_cast<double>(size)) {
    least = cut_list(keys, size, static_cast<std::size_t>(rank + slack) + 1, bins).key;
  }
}

// Find the cut for the k winners among m values, 0 < k <= m. Where they are many, a few of them
// tell between which two keys it is, and only keys between these are looked at closely. The values
// may be keys; `keys` has room for kMostKeys + kSlack, `bins` for 2^kBinBits.
template <class T>
Cut<T> find_cut(const T* values, std::size_t m, std::size_t k, KeyOf<T>* keys,
                std::uint32_t* bins) {
  using Key = KeyOf<T>;
  Key least = 0, most = FloatBits<T>::kMagnitude;
  if (k == m) {
    PAROPT_DISPATCH(key_range(values, m, least, most));
    return {least, m};
  }
  if (m > 2 * kGuide) {
    for (std::size_t i = 0; i < kGuide; ++i) keys[i] = key_of(values[m / kGuide * i]);
    guess_range(keys, kGuide, static_cast<double>(k) / static_cast<double>(m), bins, least, most);
  }
  for (int round = 0; round < 3; ++round) {
    std::size_t above = 0;
    const std::size_t inside =
        PAROPT_DISPATCH(narrow(values, m, least, most, keys, kMostKeys, above));
    if (above >= k || above + inside < k) break;  // misled
    if (least == most) return {least, k - above};
    if (inside <= kMostKeys) {
      const Cut<Key> cut = cut_list(keys, inside, k - above, bins);
      return {cut.key, cut.ties};
    }
    // The listed keys are a sample of those between.
    const double share = static_cast<double>(k - above) / static_cast<double>(inside);
    for (std::size_t i = 0; i < kGuide; ++i) keys[i] = keys[kMostKeys / kGuide * i];
    guess_range(keys, kGuide, share, bins, least, most);
  }
  return cut_in_rounds(values, m, k);
}

}  // namespace paropt
