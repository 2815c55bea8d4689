// How top-k reads its input once.
//
// A sample of the input gives a `bound`: a key that a little more than k entries reach. One sweep
// over the input in blocks moves every entry that reaches the bound, a `candidate`, into the
// `pool`; the exact winners are then found in the pool, which is small. Should fewer than k
// entries reach the bound, the sweep starts again without one. A hint from an earlier search saves
// the sample and brings fewer candidates.
//
// A pool that runs full (ties, constant vectors, an unlucky sample) is pruned to its best k; their
// least key is a better bound for the blocks still to come. So each entry costs a bounded amount
// of work whatever the input, and no threshold has to be right for the result to be exact.
//
// With a residual, candidates move out of it into the pool, and those that lose move back: the
// residual's lines have left the caches by then. So only those move that reach the `guess`, the key
// where the sample sees the cut; the others are copied, and few have to be put right at the end. At
// all times the residual has what is not in the pool, and 0 for what is and reaches the guess.
#include "topk.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "common.hpp"
#include "workspace.hpp"

namespace paropt {

// Where the winners end: all keys above `key` win, and the first `ties` candidates equal to it.
template <class T>
struct Cut {
  KeyOf<T> key;
  std::size_t ties;
};

constexpr std::size_t kSlack = 32;       // what vector stores may write past a list
constexpr std::size_t kBlock = 16384;    // entries; a block and its residual fit in L2
constexpr std::size_t kStrip = 2048;     // entries; a strip and its residual fit in L1
constexpr std::size_t kPlaceSlack = 64;  // what vector stores may write past a list of places

}  // namespace paropt

#define PAROPT_LOOPS "ones_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "reach_loops.hpp"
#include "foreach_isa.hpp"
#undef PAROPT_LOOPS
#define PAROPT_LOOPS "topk_loops.hpp"
#include "foreach_isa.hpp"
#include "topk_cut.hpp"

namespace paropt {
namespace {

constexpr std::size_t kLine = 16;  // neighbouring entries sampled together
constexpr std::size_t kMostLines = 1024;
constexpr std::size_t kSampledFrom = 512;  // shorter vectors go without a sample

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

// Keys to collect by; see above.
template <class T>
struct Bounds {
  KeyOf<T> bound, guess;
};

// A hint as keys of type T. The margin follows the cut: twice its last fall, and less from call to
// call while it does not fall. One above an eighth of an octave would bring more candidates than a
// sample does.
template <class T>
struct Memory {
  static constexpr std::uint64_t kType = FloatBits<T>::kInfinity;
  static constexpr std::uint64_t kOctave = kType & (~kType + 1);  // from a number to its double
  static constexpr std::uint64_t kFirst = kOctave / 16,
                                 kLeast = std::max(kOctave / 256, std::uint64_t{1});

  static bool fits(const Hint* hint, std::size_t n, std::size_t k) {
    return hint != nullptr && hint->n == n && hint->k == k && hint->type == kType;
  }

  static bool useful(const Hint* hint, std::size_t n, std::size_t k) {
    return fits(hint, n, k) && hint->margin <= kOctave / 8;
  }

  static Bounds<T> bounds(const Hint& hint) {
    const std::uint64_t cut = std::min<std::uint64_t>(hint.cut, FloatBits<T>::kMagnitude);
    return {static_cast<KeyOf<T>>(cut - std::min(cut, hint.margin)), static_cast<KeyOf<T>>(cut)};
  }

  static void learn(Hint* hint, std::size_t n, std::size_t k, KeyOf<T> cut) {
    if (hint == nullptr) return;
    std::uint64_t margin = kFirst;
    if (fits(hint, n, k)) {
      const std::uint64_t fall = hint->cut > cut ? std::min(hint->cut - cut, kType) : 0;
      margin = std::max({kLeast, 2 * fall, hint->margin - hint->margin / 8});
    }
    *hint = {n, k, kType, cut, margin};
  }
};

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
        threads_(threads_for_entries(n)) {
    thread_local Workspace workspace;
    Carver measure(nullptr);
    carve(measure);
    Carver carver(workspace.room(measure.used()));
    carve(carver);
    std::fill_n(runs_, blocks_, Run{});
  }

  std::size_t run(I* indices, T* values, Hint* hint) {
    constexpr Key kNone = FloatBits<T>::kMagnitude + 1;
    if (k_ == 0) {
      gather({kNone, 0});
      return nonfinite_;
    }
    const bool hinted = Memory<T>::useful(hint, n_, k_);
    gather(hinted ? Memory<T>::bounds(*hint) : sampled_bounds());
    if (used_ < k_ && hinted) {
      put_back();
      gather(sampled_bounds());
    }
    if (used_ < k_) {
      put_back();
      gather({0, 0});
    }
    const Cut<T> cut = find_cut(pool_.values, used_, k_, keys_, bins_);
    finish(cut, indices, values);
    Memory<T>::learn(hint, n_, k_, cut.key);
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
  Bounds<T> sampled_bounds() const;
  std::size_t sample(std::size_t lines) const;
  void gather(Bounds<T> bounds);
  bool sweep(Key bound);
  bool collect_block(std::size_t block, Key bound, std::size_t& nonfinite);
  bool reserve(Run& run, std::size_t found);
  Key prune();
  void close_gaps();
  void put_back();
  void finish(Cut<T> cut, I* indices, T* values);

  const T* gradient_;
  T* residual_;
  std::size_t n_, k_, capacity_, blocks_;
  int threads_;
  List pool_, scratch_;  // scratch: what one thread found in a block, kBlock + kSlack per thread
  Run* runs_;
  Key *keys_, *sample_;
  std::uint32_t* bins_;
  std::mutex mutex_;
  std::size_t used_ = 0;  // entries of the pool, guarded by mutex_ within a sweep
  std::size_t nonfinite_ = 0;
  Key guess_ = 0;
  std::size_t strict_after_ = 0;  // blocks after this one must exceed the bound, not reach it
};

template <class T, class I>
void Search<T, I>::carve(Carver& carver) {
  const std::size_t lists = static_cast<std::size_t>(threads_) * (std::min(n_, kBlock) + kSlack);
  pool_ = {carver.take<I>(capacity_ + kSlack), carver.take<T>(capacity_ + kSlack)};
  scratch_ = {carver.take<I>(lists), carver.take<T>(lists)};
  runs_ = carver.take<Run>(blocks_);
  keys_ = carver.take<Key>(kMostKeys + kSlack);
  sample_ = carver.take<Key>(kMostLines * kLine);
  bins_ = carver.take<std::uint32_t>(std::size_t{1} << kBinBits);
}

// Sample whole cache lines, one at a hashed place in each of equal strata, and list their keys.
template <class T, class I>
std::size_t Search<T, I>::sample(std::size_t lines) const {
  const T* addend = runs_[0].seen ? nullptr : residual_;  // when seen, the residual is the sum
  const T* x = runs_[0].seen && residual_ != nullptr ? residual_ : gradient_;
  const std::size_t stratum = n_ / lines;
  const std::size_t lead = -reinterpret_cast<std::uintptr_t>(x) / sizeof(T) % kLine;
  const auto place = [=](std::size_t line) {
    const std::uint64_t hash = (line + 1) * 0x9e3779b97f4a7c15;  // Fibonacci hashing
    return (line * stratum + (hash >> 32) % (stratum - 2 * kLine)) / kLine * kLine + lead;
  };
  Key* key = sample_;
  for (std::size_t line = 0; line < lines; ++line) {
    const std::size_t soon = place(std::min(line + 24, lines - 1)), first = place(line);
    __builtin_prefetch(x + soon);
    if (addend != nullptr) __builtin_prefetch(addend + soon);
    for (std::size_t j = first; j < first + kLine; ++j) {
      *key++ = key_of(addend == nullptr ? x[j] : sum(addend[j], x[j]));
    }
  }
  return lines * kLine;
}

// Guess the cut by the key of the same rank in a sample, and take as the bound the key of a rank so
// high that missing k winners is a 4.5-sigma event. A larger sample takes longer and brings fewer
// candidates; the size is about where both together cost least.
template <class T, class I>
Bounds<T> Search<T, I>::sampled_bounds() const {
  if (n_ < kSampledFrom) return {0, 0};
  const double n = static_cast<double>(n_), share = static_cast<double>(k_) / n;
  const double best = std::cbrt(4 * n * n * share) + 2 * std::sqrt(n);
  const auto lines = std::min({static_cast<std::size_t>(best) / kLine + 1, kMostLines, n_ / 128});
  const double expected = share * static_cast<double>(lines * kLine);
  const auto rank = static_cast<std::size_t>(expected + 4.5 * std::sqrt(expected) + 4);
  if (rank >= lines * kLine) return {0, 0};
  const std::size_t size = sample(lines);
  const Key bound = find_cut(sample_, size, rank, keys_, bins_).key;
  if (residual_ == nullptr) return {bound, 0};
  return {bound, find_cut(sample_, size, static_cast<std::size_t>(expected) + 1, keys_, bins_).key};
}

// Non-finite entries always reach the guess, so that none is counted in the pool and outside.
template <class T, class I>
void Search<T, I>::gather(Bounds<T> bounds) {
  strict_after_ = blocks_;
  guess_ = std::min(bounds.guess, FloatBits<T>::kInfinity);
  while (!sweep(bounds.bound)) bounds.bound = prune();
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
                              bound, guess_, list.positions, list.values));
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
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (threads_ > 1) lock.lock();
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
  Cut<T> cut = find_cut(pool_.values, used_, k_, keys_, bins_);
  const Key bound = cut.key;
  for (std::size_t block = 0; block < blocks_; ++block) {
    Run& run = runs_[block];
    if (!run.pooled) continue;
    strict_after_ = block;
    I* positions = pool_.positions + run.offset;
    T* values = pool_.values + run.offset;
    run.count = static_cast<std::uint32_t>(PAROPT_DISPATCH(
        keep(positions, values, run.count, cut, residual_, guess_, positions, values, run.count)));
  }
  close_gaps();
  guess_ = 0;  // what is in the pool is no longer in the residual
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
void Search<T, I>::finish(Cut<T> cut, I* indices, T* values) {
  std::size_t kept = 0;
  for (std::size_t block = 0; block < blocks_;) {
    // Neighbours in the vector are mostly neighbours in the pool.
    const List list = pool_.from(runs_[block].offset);
    std::size_t count = runs_[block].count;
    while (++block < blocks_ && pool_.values + runs_[block].offset == list.values + count) {
      count += runs_[block].count;
    }
    kept += PAROPT_DISPATCH(keep(list.positions, list.values, count, cut, residual_, guess_,
                                 indices + kept, values + kept, k_ - kept));
  }
}

}  // namespace

template <class T, class I>
std::size_t topk(const T* gradient, T* residual, std::size_t n, std::size_t k, I* indices,
                 T* values, Hint* hint) {
  return Search<T, I>(gradient, residual, n, k).run(indices, values, hint);
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
        acc + first, residual, false, count, static_cast<I>(first), bound, bound, indices, values));
    indices += found;
    values += found;
  }
}

#define PAROPT_TOPK(T)                                                                          \
  template std::size_t topk(const T*, T*, std::size_t, std::size_t, std::uint32_t*, T*, Hint*); \
  template std::size_t topk(const T*, T*, std::size_t, std::size_t, std::uint64_t*, T*, Hint*); \
  template Reach reach_count(const T*, T*, std::size_t, KeyOf<T>);                              \
  template void reach_take(const T*, T*, std::size_t, KeyOf<T>, std::uint32_t*, T*);            \
  template void reach_take(const T*, T*, std::size_t, KeyOf<T>, std::uint64_t*, T*);
PAROPT_TOPK(float)
PAROPT_TOPK(double)
PAROPT_TOPK(Float16)
PAROPT_TOPK(BFloat16)

}  // namespace paropt
