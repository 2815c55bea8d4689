// How top-k reads its input once.
//
// A sample of the input gives a `bound`: a key that a little more than k entries reach. One sweep
// over the input in blocks moves every entry that reaches the bound, a `candidate`, into the
// `pool`; the exact winners are then found in the pool, which is small. Should fewer than k
// entries reach the bound, the sweep starts again without one.
//
// A pool that runs full (ties, constant vectors, an unlucky sample) is pruned to its best k; their
// least key is a better bound for the blocks still to come. So each entry costs a bounded amount
// of work whatever the input, and no threshold has to be right for the result to be exact.
//
// With a residual one invariant holds at all times: residual + pool == acc. Candidates move out of
// the residual into the pool, and those that lose move back.
#include "topk.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "common.hpp"

namespace paropt {

// Where the winners end: all keys above `key` win, and the first `ties` candidates equal to it.
template <class T>
struct Cut {
  KeyOf<T> key;
  std::size_t ties;
};

constexpr std::size_t kBlock = 16384;  // entries; a block and its residual fit in L2
constexpr std::size_t kAhead = 8192;   // bytes; the processor's own prefetching stops at each page

}  // namespace paropt

#define PAROPT_LOOPS "topk_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

constexpr std::size_t kSlack = 32;           // what vector stores may write past a list
constexpr std::size_t kBlocksPerThread = 8;  // fewer are not worth a thread
constexpr std::size_t kLine = 16;            // neighbouring entries sampled together
constexpr std::size_t kMostLines = 1024;
constexpr std::size_t kSampledFrom = 512;  // shorter vectors go without a sample
constexpr std::size_t kMostKeys = 16384;   // in a list of keys, the sample included
constexpr std::size_t kGuide = 2048;       // keys that guide the search in more than kMostKeys
constexpr unsigned kBinBits = 11;

// Memory that stays with the calling thread: getting it anew from the system would cost more page
// faults than the whole selection takes. A piece that is far too large is given back.
class Workspace {
 public:
  std::uint8_t* room(std::size_t bytes) {
    if (bytes > bytes_ || bytes < bytes_ / 8) {
      memory_.reset();
      memory_.reset(new std::uint8_t[bytes]);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
  std::size_t bytes_ = 0;
};

// Cuts pieces off one piece of memory; with none it only measures.
class Carver {
 public:
  explicit Carver(std::uint8_t* memory) : memory_(memory) {}

  template <class U>
  U* take(std::size_t count) {
    U* piece = memory_ == nullptr ? nullptr : reinterpret_cast<U*>(memory_ + used_);
    used_ += ceil_div(count * sizeof(U), 64) * 64;
    return piece;
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::size_t used_ = 0;
};

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

// One call of topk.
template <class T, class I>
class Search {
 public:
  Search(const T* gradient, T* residual, std::size_t n, std::size_t k)
      : gradient_(gradient),
        residual_(residual),
        n_(n),
        k_(k),
        capacity_(std::min(n, std::max(2 * k, k + kBlock))),
        blocks_(ceil_div(n, kBlock)),
        threads_(threads_for(blocks_, kBlocksPerThread)) {
    thread_local Workspace workspace;
    Carver measure(nullptr);
    carve(measure);
    Carver carver(workspace.room(measure.used()));
    carve(carver);
    std::fill_n(runs_, blocks_, Run{});
  }

  std::size_t run(I* indices, T* values) {
    constexpr Key kNone = FloatBits<T>::kMagnitude + 1;
    gather(k_ == 0 ? kNone : sampled_bound());
    if (used_ < k_) {
      put_back();
      gather(0);
    }
    if (k_ > 0) finish(indices, values);
    return nonfinite_;
  }

 private:
  using Key = KeyOf<T>;

  struct List {
    I* positions;
    T* values;
    List from(std::size_t offset) const { return {positions + offset, values + offset}; }
  };

  // The candidates of one block, in order, at `offset` of the pool.
  struct Run {
    std::size_t offset = 0;
    std::uint32_t count = 0;
    bool seen = false;    // accumulated, its non-finite entries counted
    bool pooled = false;  // its candidates are in the pool
  };

  void carve(Carver& carver);
  Key sampled_bound() const;
  Cut<T> find_cut(const T* values, std::size_t m, std::size_t k) const;
  void gather(Key bound);
  bool sweep(Key bound);
  bool collect_block(std::size_t block, Key bound, std::size_t& nonfinite);
  bool reserve(Run& run, std::size_t found);
  Key prune();
  void close_gaps();
  void put_back();
  void finish(I* indices, T* values);

  const T* gradient_;
  T* residual_;
  std::size_t n_, k_, capacity_, blocks_;
  int threads_;
  List pool_, scratch_;  // scratch: what one thread found in a block, kBlock + kSlack per thread
  Run* runs_;
  Key* keys_;
  std::uint32_t* bins_;
  std::mutex mutex_;
  std::size_t used_ = 0;  // entries of the pool, guarded by mutex_ within a sweep
  std::size_t nonfinite_ = 0;
  std::size_t strict_after_ = 0;  // blocks after this one must exceed the bound, not reach it
};

template <class T, class I>
void Search<T, I>::carve(Carver& carver) {
  const std::size_t lists = static_cast<std::size_t>(threads_) * (std::min(n_, kBlock) + kSlack);
  pool_ = {carver.take<I>(capacity_ + kSlack), carver.take<T>(capacity_ + kSlack)};
  scratch_ = {carver.take<I>(lists), carver.take<T>(lists)};
  runs_ = carver.take<Run>(blocks_);
  keys_ = carver.take<Key>(kMostKeys + kSlack);
  bins_ = carver.take<std::uint32_t>(std::size_t{1} << kBinBits);
}

// Sample whole cache lines, one at a hashed place in each of equal strata, and take the key of a
// rank so high that missing k winners is a 4.5-sigma event.
template <class T, class I>
KeyOf<T> Search<T, I>::sampled_bound() const {
  if (n_ < kSampledFrom) return 0;
  const std::size_t lines = std::min(kMostLines, n_ / 128);
  const std::size_t stratum = n_ / lines;
  const std::size_t size = lines * kLine;
  const double expected = static_cast<double>(k_) / static_cast<double>(n_) * size;
  const auto rank = static_cast<std::size_t>(expected + 4.5 * std::sqrt(expected) + 4);
  if (rank >= size) return 0;
  Key* key = keys_;
  for (std::size_t line = 0; line < lines; ++line) {
    const std::uint64_t hash = (line + 1) * 0x9e3779b97f4a7c15;  // Fibonacci hashing
    const std::size_t first = line * stratum + (hash >> 32) % (stratum - kLine + 1);
    for (std::size_t j = first; j < first + kLine; ++j) {
      *key++ = key_of(residual_ == nullptr ? gradient_[j] : sum(residual_[j], gradient_[j]));
    }
  }
  return cut_list(keys_, size, rank, bins_).key;
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
// tell between which two keys it is, and only keys between these are looked at closely.
template <class T, class I>
Cut<T> Search<T, I>::find_cut(const T* values, std::size_t m, std::size_t k) const {
  if (k == m) return {0, std::numeric_limits<std::size_t>::max()};
  Key least = 0, most = FloatBits<T>::kMagnitude;
  if (m > kMostKeys) {
    for (std::size_t i = 0; i < kGuide; ++i) keys_[i] = key_of(values[m / kGuide * i]);
    guess_range(keys_, kGuide, static_cast<double>(k) / static_cast<double>(m), bins_, least, most);
  }
  for (int round = 0; round < 3; ++round) {
    std::size_t above = 0;
    const std::size_t inside =
        PAROPT_DISPATCH(narrow(values, m, least, most, keys_, kMostKeys, above));
    if (above >= k || above + inside < k) break;  // misled
    if (least == most) return {least, k - above};
    if (inside <= kMostKeys) {
      const Cut<Key> cut = cut_list(keys_, inside, k - above, bins_);
      return {cut.key, cut.ties};
    }
    // The listed keys are a sample of those between.
    const double share = static_cast<double>(k - above) / static_cast<double>(inside);
    for (std::size_t i = 0; i < kGuide; ++i) keys_[i] = keys_[kMostKeys / kGuide * i];
    guess_range(keys_, kGuide, share, bins_, least, most);
  }
  return cut_in_rounds(values, m, k);
}

template <class T, class I>
void Search<T, I>::gather(Key bound) {
  strict_after_ = blocks_;
  while (!sweep(bound)) bound = prune();
}

// Pool the candidates of all blocks that are not pooled yet; false when the pool ran full.
template <class T, class I>
bool Search<T, I>::sweep(Key bound) {
  std::atomic<bool> full{false};
  std::size_t nonfinite = 0;
#pragma omp parallel for schedule(dynamic, 2) num_threads(threads_) if (threads_ > 1) \
    reduction(+ : nonfinite)
  for (std::size_t block = 0; block < blocks_; ++block) {
    if (runs_[block].pooled || full.load(std::memory_order_relaxed)) continue;
    const Key least = static_cast<Key>(bound + (block > strict_after_));
    if (!collect_block(block, least, nonfinite)) full = true;
  }
  nonfinite_ += nonfinite;
  return !full;
}

template <class T, class I>
bool Search<T, I>::collect_block(std::size_t block, Key bound, std::size_t& nonfinite) {
  Run& run = runs_[block];
  const std::size_t first = block * kBlock, count = std::min(kBlock, n_ - first);
  T* residual = residual_ == nullptr ? nullptr : residual_ + first;
  const bool accumulate = residual != nullptr && !run.seen;
  // One thread alone writes to the pool at once, where a whole block fits.
  const bool direct = threads_ == 1 && capacity_ - used_ >= count;
  const auto thread = static_cast<std::size_t>(thread_number());
  const List list = direct ? pool_.from(used_) : scratch_.from(thread * (kBlock + kSlack));
  const std::size_t found =
      PAROPT_DISPATCH(collect(gradient_ + first, residual, accumulate, count, static_cast<I>(first),
                              bound, list.positions, list.values));
  if (!run.seen) {
    // Non-finite entries are candidates unless the bound is beyond infinity.
    if (bound <= FloatBits<T>::kInfinity || residual != nullptr) {
      nonfinite += PAROPT_DISPATCH(count_nonfinite(list.values, found));
    }
    if (bound > FloatBits<T>::kInfinity) {
      const T* rest = residual == nullptr ? gradient_ + first : residual;
      nonfinite += PAROPT_DISPATCH(count_nonfinite(rest, count));
    }
    run.seen = true;
  }
  if (reserve(run, found)) {
    if (direct) return true;
    std::copy_n(list.positions, found, pool_.positions + run.offset);
    std::copy_n(list.values, found, pool_.values + run.offset);
    return true;
  }
  // The block has to wait for a pruned pool: undo the move.
  for (std::size_t i = 0; residual != nullptr && i < found; ++i) {
    residual_[list.positions[i]] = list.values[i];
  }
  return false;
}

template <class T, class I>
bool Search<T, I>::reserve(Run& run, std::size_t found) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capacity_ - used_ < found) return false;
  run.offset = used_;
  run.count = static_cast<std::uint32_t>(found);
  run.pooled = true;
  used_ += found;
  return true;
}

// Reduce the pool to its best k and return their bound. Room for a whole block is then free, so
// the next sweep gets on. An entry of a later block loses a tie against these k; one of a block
// that was skipped in between may win it.
template <class T, class I>
KeyOf<T> Search<T, I>::prune() {
  Cut<T> cut = find_cut(pool_.values, used_, k_);
  const Key bound = cut.key;
  for (std::size_t block = 0; block < blocks_; ++block) {
    Run& run = runs_[block];
    if (!run.pooled) continue;
    strict_after_ = block;
    I* positions = pool_.positions + run.offset;
    T* values = pool_.values + run.offset;
    run.count = static_cast<std::uint32_t>(PAROPT_DISPATCH(
        keep(positions, values, run.count, cut, residual_, positions, values, run.count)));
  }
  close_gaps();
  return bound;
}

template <class T, class I>
void Search<T, I>::close_gaps() {
  std::vector<Run*> order;
  for (std::size_t block = 0; block < blocks_; ++block) {
    if (runs_[block].count > 0) order.push_back(&runs_[block]);
  }
  std::sort(order.begin(), order.end(), [](Run* a, Run* b) { return a->offset < b->offset; });
  used_ = 0;
  for (Run* run : order) {
    std::copy_n(pool_.positions + run->offset, run->count, pool_.positions + used_);
    std::copy_n(pool_.values + run->offset, run->count, pool_.values + used_);
    run->offset = used_;
    used_ += run->count;
  }
}

// Empty the pool.
template <class T, class I>
void Search<T, I>::put_back() {
  for (std::size_t i = 0; residual_ != nullptr && i < used_; ++i) {
    residual_[pool_.positions[i]] = pool_.values[i];
  }
  for (std::size_t block = 0; block < blocks_; ++block) {
    runs_[block].pooled = false, runs_[block].count = 0;
  }
  used_ = 0;
}

template <class T, class I>
void Search<T, I>::finish(I* indices, T* values) {
  Cut<T> cut = find_cut(pool_.values, used_, k_);
  std::size_t kept = 0;
  for (std::size_t block = 0; block < blocks_; ++block) {
    const List list = pool_.from(runs_[block].offset);
    kept += PAROPT_DISPATCH(keep(list.positions, list.values, runs_[block].count, cut, residual_,
                                 indices + kept, values + kept, k_ - kept));
  }
}

}  // namespace

template <class T, class I>
std::size_t topk(const T* gradient, T* residual, std::size_t n, std::size_t k, I* indices,
                 T* values) {
  return Search<T, I>(gradient, residual, n, k).run(indices, values);
}

template <class T>
Reach reach_count(const T* gradient, T* residual, std::size_t n, KeyOf<T> bound) {
  Reach reach = {0, 0};
  for (std::size_t first = 0; first < n; first += kBlock) {
    const std::size_t count = std::min(kBlock, n - first);
    T* sums = residual == nullptr ? nullptr : residual + first;
    reach.found += PAROPT_DISPATCH(count_reaching(gradient + first, sums, count, bound));
    const T* acc = residual == nullptr ? gradient + first : sums;
    reach.nonfinite += PAROPT_DISPATCH(count_nonfinite(acc, count));
  }
  return reach;
}

template <class T, class I>
void reach_take(const T* acc, T* clear, std::size_t n, KeyOf<T> bound, I* indices, T* values) {
  for (std::size_t first = 0; first < n; first += kBlock) {
    const std::size_t count = std::min(kBlock, n - first);
    T* residual = clear == nullptr ? nullptr : clear + first;
    const std::size_t found = PAROPT_DISPATCH(collect(
        acc + first, residual, false, count, static_cast<I>(first), bound, indices, values));
    indices += found;
    values += found;
  }
}

#define PAROPT_TOPK(T)                                                                   \
  template std::size_t topk(const T*, T*, std::size_t, std::size_t, std::uint32_t*, T*); \
  template std::size_t topk(const T*, T*, std::size_t, std::size_t, std::uint64_t*, T*); \
  template Reach reach_count(const T*, T*, std::size_t, KeyOf<T>);                       \
  template void reach_take(const T*, T*, std::size_t, KeyOf<T>, std::uint32_t*, T*);     \
  template void reach_take(const T*, T*, std::size_t, KeyOf<T>, std::uint64_t*, T*);
PAROPT_TOPK(float)
PAROPT_TOPK(double)
PAROPT_TOPK(Float16)
PAROPT_TOPK(BFloat16)

}  // namespace paropt
