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

}  // namespace paropt

#define PAROPT_LOOPS "topk_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

constexpr std::size_t kBlock = 16384;        // entries; a block and its residual fit in L2
constexpr std::size_t kSlack = 64;           // what vector stores may write past a list
constexpr std::size_t kBlocksPerThread = 8;  // fewer are not worth a thread
constexpr std::size_t kLine = 16;            // neighbouring entries sampled together
constexpr std::size_t kMostLines = 1024;
constexpr std::size_t kSampledFrom = 32768;  // shorter vectors go without a sample
constexpr unsigned kBinBits = 11;

// Find the cut for the k winners among m values, 0 < k <= m. Each round spreads the keys that are
// still in question over 2048 bins and goes on in the bin of the cut.
template <class T>
Cut<T> find_cut(const T* values, std::size_t m, std::size_t k) {
  using Key = KeyOf<T>;
  constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  if (k == m) return {0, kAll};
  Key least, most;
  PAROPT_DISPATCH(key_range(values, m, least, most));
  std::vector<std::size_t> bins(std::size_t{1} << kBinBits);
  while (least < most) {
    const unsigned width = bit_width(most - least);
    const unsigned shift = width > kBinBits ? width - kBinBits : 0;
    std::fill(bins.begin(), bins.end(), 0);
    PAROPT_DISPATCH(histogram(values, m, least, most, shift, bins.data()));
    std::size_t bin = static_cast<std::size_t>((most - least) >> shift);
    while (bins[bin] < k) k -= bins[bin--];
    const Key low = least + (static_cast<Key>(bin) << shift);
    if (bins[bin] == k) return {low, kAll};  // all keys of this bin win, none is cut apart
    most = std::min<Key>(most, low + ((Key{1} << shift) - 1));
    least = low;
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
        pool_(capacity_),
        runs_(ceil_div(n, kBlock)) {
    const int threads = threads_for(runs_.size(), kBlocksPerThread);
    for (int t = 0; t < threads; ++t) scratch_.emplace_back(std::min(n, kBlock) + kSlack);
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
    explicit List(std::size_t room) : positions(new I[room]), values(new T[room]) {}
    std::unique_ptr<I[]> positions;
    std::unique_ptr<T[]> values;
  };

  // The candidates of one block, in order, at `offset` of the pool.
  struct Run {
    std::size_t offset = 0;
    std::uint32_t count = 0;
    bool seen = false;    // accumulated, its non-finite entries counted
    bool pooled = false;  // its candidates are in the pool
  };

  Key sampled_bound() const;
  void gather(Key bound);
  bool sweep(Key bound);
  bool collect_block(std::size_t block, Key bound, List& list, std::size_t& nonfinite);
  bool append(Run& run, const List& list, std::size_t found);
  Key prune();
  void close_gaps();
  void put_back();
  void finish(I* indices, T* values);

  const T* gradient_;
  T* residual_;
  std::size_t n_, k_, capacity_;
  List pool_;
  std::vector<Run> runs_;
  std::vector<List> scratch_;
  std::mutex mutex_;
  std::size_t used_ = 0;  // entries of the pool, guarded by mutex_ within a sweep
  std::size_t nonfinite_ = 0;
  std::size_t strict_after_ = 0;  // blocks after this one must exceed the bound, not reach it
};

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
  std::unique_ptr<T[]> sample(new T[size]);
  for (std::size_t line = 0; line < lines; ++line) {
    const std::uint64_t hash = (line + 1) * 0x9e3779b97f4a7c15;  // Fibonacci hashing
    const std::size_t first = line * stratum + (hash >> 32) % (stratum - kLine + 1);
    for (std::size_t j = 0; j < kLine; ++j) {
      const T x = gradient_[first + j];
      sample[line * kLine + j] = residual_ == nullptr ? x : residual_[first + j] + x;
    }
  }
  return find_cut(sample.get(), size, rank).key;
}

template <class T, class I>
void Search<T, I>::gather(Key bound) {
  strict_after_ = runs_.size();
  while (!sweep(bound)) bound = prune();
}

// Pool the candidates of all blocks that are not pooled yet; false when the pool ran full.
template <class T, class I>
bool Search<T, I>::sweep(Key bound) {
  std::atomic<bool> full{false};
  std::size_t nonfinite = 0;
  [[maybe_unused]] const int threads = static_cast<int>(scratch_.size());
#pragma omp parallel for schedule(dynamic, 2) num_threads(threads) if (threads > 1) \
    reduction(+ : nonfinite)
  for (std::size_t block = 0; block < runs_.size(); ++block) {
    if (runs_[block].pooled || full.load(std::memory_order_relaxed)) continue;
    const Key least = bound + (block > strict_after_);
    if (!collect_block(block, least, scratch_[thread_number()], nonfinite)) full = true;
  }
  nonfinite_ += nonfinite;
  return !full;
}

template <class T, class I>
bool Search<T, I>::collect_block(std::size_t block, Key bound, List& list, std::size_t& nonfinite) {
  Run& run = runs_[block];
  const std::size_t first = block * kBlock, count = std::min(kBlock, n_ - first);
  T* residual = residual_ == nullptr ? nullptr : residual_ + first;
  const bool accumulate = residual != nullptr && !run.seen;
  const std::size_t found =
      PAROPT_DISPATCH(collect(gradient_ + first, residual, accumulate, count, static_cast<I>(first),
                              bound, list.positions.get(), list.values.get()));
  if (!run.seen) {
    // Non-finite entries are candidates unless the bound is beyond infinity.
    if (bound <= FloatBits<T>::kInfinity || residual != nullptr) {
      nonfinite += PAROPT_DISPATCH(count_nonfinite(list.values.get(), found));
    }
    if (bound > FloatBits<T>::kInfinity) {
      const T* rest = residual == nullptr ? gradient_ + first : residual;
      nonfinite += PAROPT_DISPATCH(count_nonfinite(rest, count));
    }
    run.seen = true;
  }
  if (append(run, list, found)) return true;
  // The block has to wait for a pruned pool: undo the move.
  for (std::size_t i = 0; residual != nullptr && i < found; ++i) {
    residual_[list.positions[i]] = list.values[i];
  }
  return false;
}

template <class T, class I>
bool Search<T, I>::append(Run& run, const List& list, std::size_t found) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (capacity_ - used_ < found) return false;
    run.offset = used_;
    used_ += found;
  }
  run.count = static_cast<std::uint32_t>(found);
  run.pooled = true;
  std::copy_n(list.positions.get(), found, pool_.positions.get() + run.offset);
  std::copy_n(list.values.get(), found, pool_.values.get() + run.offset);
  return true;
}

// Reduce the pool to its best k and return their bound. Room for a whole block is then free, so
// the next sweep gets on. An entry of a later block loses a tie against these k; one of a block
// that was skipped in between may win it.
template <class T, class I>
KeyOf<T> Search<T, I>::prune() {
  Cut<T> cut = find_cut(pool_.values.get(), used_, k_);
  const Key bound = cut.key;
  for (std::size_t block = 0; block < runs_.size(); ++block) {
    Run& run = runs_[block];
    if (!run.pooled) continue;
    strict_after_ = block;
    I* positions = pool_.positions.get() + run.offset;
    T* values = pool_.values.get() + run.offset;
    run.count = static_cast<std::uint32_t>(
        PAROPT_DISPATCH(keep(positions, values, run.count, cut, residual_, positions, values)));
  }
  close_gaps();
  return bound;
}

template <class T, class I>
void Search<T, I>::close_gaps() {
  std::vector<Run*> order;
  for (Run& run : runs_) {
    if (run.count > 0) order.push_back(&run);
  }
  std::sort(order.begin(), order.end(), [](Run* a, Run* b) { return a->offset < b->offset; });
  used_ = 0;
  for (Run* run : order) {
    std::copy_n(pool_.positions.get() + run->offset, run->count, pool_.positions.get() + used_);
    std::copy_n(pool_.values.get() + run->offset, run->count, pool_.values.get() + used_);
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
  for (Run& run : runs_) run.pooled = false, run.count = 0;
  used_ = 0;
}

template <class T, class I>
void Search<T, I>::finish(I* indices, T* values) {
  Cut<T> cut = find_cut(pool_.values.get(), used_, k_);
  for (const Run& run : runs_) {
    const std::size_t kept =
        PAROPT_DISPATCH(keep(pool_.positions.get() + run.offset, pool_.values.get() + run.offset,
                             run.count, cut, residual_, indices, values));
    indices += kept;
    values += kept;
  }
}

}  // namespace

template <class T, class I>
std::size_t topk(const T* gradient, T* residual, std::size_t n, std::size_t k, I* indices,
                 T* values) {
  return Search<T, I>(gradient, residual, n, k).run(indices, values);
}

template std::size_t topk(const float*, float*, std::size_t, std::size_t, std::uint32_t*, float*);
template std::size_t topk(const float*, float*, std::size_t, std::size_t, std::uint64_t*, float*);
template std::size_t topk(const double*, double*, std::size_t, std::size_t, std::uint32_t*,
                          double*);
template std::size_t topk(const double*, double*, std::size_t, std::size_t, std::uint64_t*,
                          double*);

}  // namespace paropt
