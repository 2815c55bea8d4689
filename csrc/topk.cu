// Top-k in one pass over the vector, without a word from the host in between.
//
// The vector is cut into tiles. A sample gives a bound that a little more than k entries most
// likely reach. One pass adds the gradient to the residual and moves the entries that reach the
// bound, the candidates, to a pool: tile after tile as the blocks come, in order within a tile.
// A radix selection among the candidates finds the key of the k-th, the cut. At last every tile
// counts its winners, and writes them where those of the tiles before end.
//
// Where the bound was wrong, because fewer than k entries reach it or more than the pool can hold,
// the kernels read the vector itself in place of the pool: the selection takes more passes then,
// and the result is the same. Each kernel sees for itself which of the two it is.

#include <cmath>

#include "cuda_common.cuh"
#include "topk.cuh"

namespace paropt::cuda {
namespace {

constexpr unsigned kVectors = 4;             // loads of a thread in flight
constexpr std::size_t kLine = 16;            // neighbouring entries sampled together
constexpr std::size_t kSampleBytes = 32768;  // keys of the sample, which fit a block's memory
constexpr unsigned kDigitBits = 11;          // of a key, in one round of the selection
constexpr unsigned kBins = 1u << kDigitBits;

template <class T>
constexpr unsigned kPerVector = Vector<T>::kCount;
template <class T>
constexpr std::size_t kTile = kThreads * kVectors * kPerVector<T>;
template <class T>
constexpr std::size_t kSample = kSampleBytes / sizeof(T) / (sizeof(T) == 2 ? 2 : 1);
template <class T>
constexpr unsigned kKeyBits = 8 * sizeof(T) - 1;
template <class T>
constexpr unsigned kRounds = (kKeyBits<T> + kDigitBits - 1) / kDigitBits;

// The share of entries from which candidates would take more traffic than they save.
constexpr double kMostShare = 0.25;

// What rounds of the selection leave: the upper digits of the cut, and the rank among the keys that
// have them. 64 bits serve every type.
struct Rank {
  Count key, rank;
};

struct State {
  Count nonfinite;  // first: topk_nonfinite reads it
  Count bound;      // key that candidates reach
  Count pooled;     // entries that reach the bound, in the pool or not
  Count ties;       // those of them whose key is the bound
  Rank rounds[8];
};

struct Run {  // the candidates of a tile
  Count offset;
  std::uint32_t count;
};

struct Won {  // winners, and entries that tie for the last places
  Count above, tied;
};

// Everything that the kernels share, in device memory but for this list of places.
template <class T, class I>
struct Search {
  const T* gradient;
  T* residual;
  std::size_t n, k, tiles, capacity;
  State* state;
  std::uint32_t* bins;  // kBins for each round
  Run* runs;            // by tile
  Won* won_before;      // by tile: in the tiles before it of the same block
  Won* won;             // by block
  I* positions;         // the pool
  T* values;

  // The vector after the first pass.
  __device__ const T* acc() const { return residual == nullptr ? gradient : residual; }

  __device__ bool direct() const { return state->pooled < k || state->pooled > capacity; }

  // Where the keys are that come into question.
  __device__ const T* source() const { return direct() ? acc() : values; }
  __device__ std::size_t source_size() const { return direct() ? n : state->pooled; }
};

// ---- the bound ---------------------------------------------------------------------------------

// The bin in which the entry of rank `rank` from the top is, and its rank there. Called by all
// threads of a block.
__device__ Rank find_bin(const std::uint32_t* bins, Count rank) {
  constexpr unsigned kEach = kBins / kThreads;
  __shared__ Rank found;
  // Thread 0 has the upper bins.
  const unsigned last = kBins - 1 - threadIdx.x * kEach;
  Count mine = 0;
  for (unsigned i = 0; i < kEach; ++i) mine += bins[last - i];
  Count total;
  Count before = block_sum_below(mine, total);
  if (before < rank && rank <= before + mine) {
    unsigned bin = last;
    while (before + bins[bin] < rank) before += bins[bin--];
    found = {bin, rank - before};
  }
  __syncthreads();
  const Rank result = found;
  __syncthreads();
  return result;
}

// Count a key that falls into `bin`. Where many keys are alike, the lanes that agree with the first
// count together.
__device__ void count_in_bin(std::uint32_t* bins, bool counts, unsigned bin) {
  const unsigned active = __ballot_sync(kAllLanes, counts);
  if (active == 0) return;
  const int leader = __ffs(static_cast<int>(active)) - 1;
  const unsigned common = __shfl_sync(kAllLanes, bin, leader);
  const unsigned alike = __ballot_sync(kAllLanes, counts && bin == common);
  if (static_cast<int>(lane_number()) == leader) {
    atomicAdd(&bins[bin], static_cast<unsigned>(__popc(alike)));
  } else if (counts && bin != common) {
    atomicAdd(&bins[bin], 1u);
  }
}

template <class T>
__device__ unsigned digit_of(KeyOf<T> key, unsigned round) {
  return static_cast<unsigned>(key >> (kDigitBits * (kRounds<T> - 1 - round))) & (kBins - 1);
}

// Whether the digits of a key above those of this round are those of `upper`.
template <class T>
__device__ bool belongs(KeyOf<T> key, unsigned round, Count upper) {
  const unsigned shift = kDigitBits * (kRounds<T> - round);
  return round == 0 || static_cast<Count>(key) >> shift == upper;
}

// Sample whole lines, one at a hashed place in each of equal strata, and make the key of rank
// `rank` among them the bound. One block.
template <class T, class I>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(Search<T, I> search, std::size_t lines, std::size_t rank) {
  __shared__ KeyOf<T> keys[kSample<T>];
  __shared__ std::uint32_t bins[kBins];
  const std::size_t stratum = search.n / lines, size = lines * kLine;
#pragma unroll 8
  for (std::size_t i = threadIdx.x; i < size; i += kThreads) {
    const std::size_t line = i / kLine;
    const std::uint64_t hash = (line + 1) * 0x9e3779b97f4a7c15;  // Fibonacci hashing
    const std::size_t at = line * stratum + (hash >> 32) % (stratum - kLine + 1) + i % kLine;
    const T x = search.gradient[at];
    keys[i] = key_of(search.residual == nullptr ? x : sum(search.residual[at], x));
  }
  Rank found = {0, rank};
  for (unsigned round = 0; round < kRounds<T>; ++round) {
    for (unsigned i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    for (std::size_t first = 0; first < size; first += kThreads) {
      const std::size_t i = first + threadIdx.x;
      const KeyOf<T> key = i < size ? keys[i] : 0;
      count_in_bin(bins, i < size && belongs<T>(key, round, found.key), digit_of<T>(key, round));
    }
    __syncthreads();
    const Rank bin = find_bin(bins, found.rank);
    found = {found.key << kDigitBits | bin.key, bin.rank};
  }
  if (threadIdx.x == 0) search.state->bound = found.key;
}

// ---- the pass over the vector ------------------------------------------------------------------

// The entries of a tile that one thread has. A warp owns neighbouring entries; its vectors follow
// one another, and so do their lanes.
template <class T>
struct Part {
  Vector<T> vectors[kVectors];

  static __device__ std::size_t first(std::size_t tile, unsigned vector) {
    const unsigned row = warp_number() * kVectors + vector;
    return tile * kTile<T> + (row * kWarp + lane_number()) * kPerVector<T>;
  }

  __device__ void load(const T* x, std::size_t tile, std::size_t n, bool aligned) {
#pragma unroll
    for (unsigned v = 0; v < kVectors; ++v) {
      vectors[v] = load_vector(x, first(tile, v), n, aligned);
    }
  }
};

// acc = residual + gradient, kept in the residual.
template <class T>
__device__ void accumulate(Part<T>& part, T* residual, std::size_t tile, std::size_t n,
                           bool aligned) {
  Part<T> addend;
  addend.load(residual, tile, n, aligned);
#pragma unroll
  for (unsigned v = 0; v < kVectors; ++v) {
#pragma unroll
    for (unsigned j = 0; j < kPerVector<T>; ++j) {
      part.vectors[v].at[j] = sum(addend.vectors[v].at[j], part.vectors[v].at[j]);
    }
    store_vector(residual, Part<T>::first(tile, v), n, aligned, part.vectors[v]);
  }
}

struct Tally {
  unsigned hits = 0, ties = 0, nonfinite = 0;  // hits: of the warp; the others: of the lane
};

template <class T>
__device__ bool reaches(T x, Count bound, std::size_t at, std::size_t n) {
  return at < n && key_of(x) >= bound;
}

template <class T>
__device__ Tally tally(const Part<T>& part, std::size_t tile, std::size_t n, Count bound) {
  Tally result;
#pragma unroll
  for (unsigned v = 0; v < kVectors; ++v) {
    const std::size_t first = Part<T>::first(tile, v);
#pragma unroll
    for (unsigned j = 0; j < kPerVector<T>; ++j) {
      const T x = part.vectors[v].at[j];
      const bool hit = reaches(x, bound, first + j, n);
      result.hits += static_cast<unsigned>(__popc(__ballot_sync(kAllLanes, hit)));
      result.ties += hit && key_of(x) == bound;
      result.nonfinite += key_of(x) >= FloatBits<T>::kInfinity;  // beyond n there are zeros
    }
  }
  return result;
}

// Write the candidates of a warp to the pool from `offset` on, in order.
template <class T, class I>
__device__ void move_to_pool(const Part<T>& part, std::size_t tile, std::size_t n, Count bound,
                             Count offset, I* positions, T* values) {
#pragma unroll
  for (unsigned v = 0; v < kVectors; ++v) {
    const std::size_t first = Part<T>::first(tile, v);
    unsigned hits = 0, below = 0, all = 0;
#pragma unroll
    for (unsigned j = 0; j < kPerVector<T>; ++j) {
      const bool hit = reaches(part.vectors[v].at[j], bound, first + j, n);
      const unsigned ballot = __ballot_sync(kAllLanes, hit);
      hits |= static_cast<unsigned>(hit) << j;
      below += static_cast<unsigned>(__popc(ballot & lanes_below()));
      all += static_cast<unsigned>(__popc(ballot));
    }
    Count to = offset + below;
#pragma unroll
    for (unsigned j = 0; j < kPerVector<T>; ++j) {
      if ((hits >> j & 1) == 0) continue;
      positions[to] = static_cast<I>(first + j);
      values[to++] = part.vectors[v].at[j];
    }
    offset += all;
  }
}

// Reserve room for the candidates of a tile and return where those of this warp go. `run` is the
// same for all threads.
__device__ Count reserve(unsigned hits, State* state, Run& run) {
  __shared__ Run reserved;
  unsigned total;
  // The count of a warp stands in its first lane.
  const unsigned before = block_sum_below(lane_number() == 0 ? hits : 0u, total);
  if (threadIdx.x == 0) reserved = {total > 0 ? atomicAdd(&state->pooled, Count{total}) : 0, total};
  __syncthreads();
  run = reserved;
  return run.offset + __shfl_sync(kAllLanes, before, 0);
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads) collect_kernel(Search<T, I> search) {
  const Count bound = search.state->bound;
  const bool aligned = vectors_fit(search.gradient) && vectors_fit(search.residual);
  unsigned nonfinite = 0, ties = 0;
  for (std::size_t tile = blockIdx.x; tile < search.tiles; tile += gridDim.x) {
    Part<T> part;
    part.load(search.gradient, tile, search.n, aligned);
    if (search.residual != nullptr) accumulate(part, search.residual, tile, search.n, aligned);
    const Tally found = tally(part, tile, search.n, bound);
    nonfinite += found.nonfinite;
    ties += found.ties;
    Run run;
    const Count offset = reserve(found.hits, search.state, run);
    if (threadIdx.x == 0) search.runs[tile] = run;
    if (run.offset + run.count <= search.capacity && found.hits > 0) {
      move_to_pool(part, tile, search.n, bound, offset, search.positions, search.values);
    }
  }
  nonfinite = block_sum(nonfinite);
  ties = block_sum(ties);
  if (threadIdx.x == 0 && nonfinite > 0) atomicAdd(&search.state->nonfinite, Count{nonfinite});
  if (threadIdx.x == 0 && ties > 0) atomicAdd(&search.state->ties, Count{ties});
}

// ---- the cut -----------------------------------------------------------------------------------

// Where it is the bound itself, as in a vector of few distinct values, nothing is to be searched.
template <class T, class I>
__device__ bool cut_is_bound(const Search<T, I>& search) {
  const Count above = search.state->pooled - search.state->ties;
  return above < search.k && search.k <= search.state->pooled;
}

// What the rounds before this one found. Its block 0 keeps it for the next one.
template <class T, class I>
__device__ Rank rank_before(const Search<T, I>& search, unsigned round) {
  if (round == 0) return {0, search.k};
  const Rank before = round == 1 ? Rank{0, search.k} : search.state->rounds[round - 1];
  const Rank bin = find_bin(search.bins + (round - 1) * kBins, before.rank);
  const Rank rank = {before.key << kDigitBits | bin.key, bin.rank};
  if (blockIdx.x == 0 && threadIdx.x == 0) search.state->rounds[round] = rank;
  return rank;
}

// The key of the last winner, and how many entries of this key win.
template <class T, class I>
__device__ Rank find_cut(const Search<T, I>& search) {
  const State& state = *search.state;
  if (cut_is_bound(search)) return {state.bound, search.k - (state.pooled - state.ties)};
  return rank_before(search, kRounds<T>);
}

// One round: spread the keys that are still in question over bins by their next digit.
template <class T, class I>
__global__ void __launch_bounds__(kThreads) spread_kernel(Search<T, I> search, unsigned round) {
  __shared__ std::uint32_t bins[kBins];
  if (cut_is_bound(search)) return;
  const Rank rank = rank_before(search, round);
  for (unsigned i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  __syncthreads();
  const T* source = search.source();
  const std::size_t size = search.source_size();
  for (std::size_t first = blockIdx.x * std::size_t{kThreads}; first < size;
       first += grid_threads()) {
    const std::size_t i = first + threadIdx.x;
    const KeyOf<T> key = i < size ? key_of(source[i]) : 0;
    count_in_bin(bins, i < size && belongs<T>(key, round, rank.key), digit_of<T>(key, round));
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kBins; i += kThreads) {
    if (bins[i] > 0) atomicAdd(&search.bins[round * kBins + i], bins[i]);
  }
}

// ---- the winners -------------------------------------------------------------------------------

// The entries of a tile that come into question.
template <class T, class I>
struct Entries {
  const T* values;
  const I* positions;  // null where they are all of the tile
  std::size_t first, count;

  __device__ Entries(const Search<T, I>& search, std::size_t tile) {
    if (search.direct()) {
      first = tile * kTile<T>;
      count = search.n - first < kTile<T> ? search.n - first : kTile<T>;
      values = search.acc() + first;
      positions = nullptr;
    } else {
      first = 0;
      count = search.runs[tile].count;
      values = search.values + search.runs[tile].offset;
      positions = search.positions + search.runs[tile].offset;
    }
  }

  __device__ I position(std::size_t i) const {
    return positions == nullptr ? static_cast<I>(first + i) : positions[i];
  }
};

// A block has neighbouring tiles, and a warp one of them at a time.
__device__ std::size_t tiles_of_block(std::size_t tiles) {
  return (tiles + gridDim.x - 1) / gridDim.x;
}

template <class T, class I>
__device__ Won count_winners(const Entries<T, I>& entries, Count cut) {
  unsigned above = 0, tied = 0;
  for (std::size_t i = lane_number(); i < entries.count; i += kWarp) {
    const Count key = key_of(entries.values[i]);
    above += key > cut;
    tied += key == cut;
  }
  return {warp_sum(above), warp_sum(tied)};
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads) count_kernel(Search<T, I> search) {
  __shared__ Won of_warp[kWarps];
  const Rank cut = find_cut(search);
  if (blockIdx.x == 0 && threadIdx.x == 0) search.state->rounds[kRounds<T>] = cut;
  const std::size_t each = tiles_of_block(search.tiles), begin = blockIdx.x * each;
  const std::size_t end = begin + each < search.tiles ? begin + each : search.tiles;
  Won before = {0, 0};
  for (std::size_t first = begin; first < end; first += kWarps) {
    const std::size_t tile = first + warp_number();
    Won mine = {0, 0};
    if (tile < end) mine = count_winners(Entries<T, I>(search, tile), cut.key);
    if (lane_number() == 0) of_warp[warp_number()] = mine;
    __syncthreads();
    Won start = before;
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      if (warp < warp_number()) {
        start = {start.above + of_warp[warp].above, start.tied + of_warp[warp].tied};
      }
      before = {before.above + of_warp[warp].above, before.tied + of_warp[warp].tied};
    }
    if (lane_number() == 0 && tile < end) search.won_before[tile] = start;
    __syncthreads();
  }
  if (threadIdx.x == 0) search.won[blockIdx.x] = before;
}

// Write the winners of a tile, of which `before` are in the tiles before; ties win while there are
// places.
template <class T, class I>
__device__ void write_winners(const Entries<T, I>& entries, Won before, Rank cut, T* residual,
                              I* indices, T* values) {
  for (std::size_t first = 0; first < entries.count; first += kWarp) {
    const std::size_t i = first + lane_number();
    const bool there = i < entries.count;
    const T x = there ? entries.values[i] : T{};
    const Count key = key_of(x);
    const unsigned above = __ballot_sync(kAllLanes, there && key > cut.key);
    const unsigned tied = __ballot_sync(kAllLanes, there && key == cut.key);
    const Count ties = before.tied + static_cast<unsigned>(__popc(tied & lanes_below()));
    const bool wins = there && (key > cut.key || (key == cut.key && ties < cut.rank));
    if (wins) {
      const Count to = before.above + static_cast<unsigned>(__popc(above & lanes_below())) +
                       (ties < cut.rank ? ties : cut.rank);
      const I position = entries.position(i);
      indices[to] = position;
      values[to] = x;
      if (residual != nullptr) residual[position] = T{};
    }
    before.above += static_cast<unsigned>(__popc(above));
    before.tied += static_cast<unsigned>(__popc(tied));
  }
}

// Four blocks at once leave 64 registers a thread; for five the compiler would spill some.
template <class T, class I>
__global__ void __launch_bounds__(kThreads, 4)
    write_kernel(Search<T, I> search, I* indices, T* values) {
  Won before = {0, 0};
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kThreads) {
    before = {before.above + search.won[block].above, before.tied + search.won[block].tied};
  }
  before = {block_sum(before.above), block_sum(before.tied)};
  const Rank cut = search.state->rounds[kRounds<T>];
  const std::size_t each = tiles_of_block(search.tiles), begin = blockIdx.x * each;
  const std::size_t end = begin + each < search.tiles ? begin + each : search.tiles;
  for (std::size_t tile = begin + warp_number(); tile < end; tile += kWarps) {
    const Won inside = search.won_before[tile];
    const Won start = {before.above + inside.above, before.tied + inside.tied};
    write_winners(Entries<T, I>(search, tile), start, cut, search.residual, indices, values);
  }
}

// ---- the launchers -----------------------------------------------------------------------------

template <class T>
bool pools(std::size_t n, std::size_t k) {
  return n >= 4 * kSample<T> && static_cast<double>(k) < kMostShare * static_cast<double>(n);
}

template <class T, class I>
void carve(Carver& carver, Search<T, I>& search) {
  search.state = carver.take<State>(1);
  search.bins = carver.take<std::uint32_t>(kRounds<T> * kBins);
  search.runs = carver.take<Run>(search.tiles);
  search.won_before = carver.take<Won>(search.tiles);
  search.won = carver.take<Won>(grid_for(search.tiles));
  search.positions = carver.take<I>(search.capacity);
  search.values = carver.take<T>(search.capacity);
}

template <class T, class I>
Search<T, I> search_for(const T* gradient, T* residual, std::size_t n, std::size_t k) {
  Search<T, I> search = {};
  search.gradient = gradient;
  search.residual = residual;
  search.n = n;
  search.k = k;
  search.tiles = ceil_div(n, kTile<T>);
  search.capacity = k > 0 && pools<T>(n, k) ? std::max(2 * k, k + kSample<T>) : 0;
  return search;
}

template <class T, class I>
Search<T, I> search_in(void* workspace, const T* gradient, T* residual, std::size_t n,
                       std::size_t k) {
  Search<T, I> search = search_for<T, I>(gradient, residual, n, k);
  Carver carver(workspace);
  carve(carver, search);
  return search;
}

template <class T, class I>
void clear(const Search<T, I>& search, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(search.state, 0, sizeof(State), stream));
  CUDA_CHECK(cudaMemsetAsync(search.bins, 0, kRounds<T> * kBins * sizeof(std::uint32_t), stream));
}

__global__ void set_kernel(State* state, Count bound, Count found) {
  if (threadIdx.x > 0) return;
  state->bound = bound;
  state->pooled = state->ties = found;
}

template <class T, class I>
void take_winners(const Search<T, I>& search, I* indices, T* values, cudaStream_t stream) {
  const unsigned grid = grid_for(search.tiles);
  launch(count_kernel<T, I>, grid, stream, search);
  launch(write_kernel<T, I>, grid, stream, search, indices, values);
}

// Set the bound by a sample, where candidates are worth while: else no key reaches it.
template <class T, class I>
void find_bound(const Search<T, I>& search, cudaStream_t stream) {
  const double share = static_cast<double>(search.k) / static_cast<double>(search.n);
  const double expected = share * static_cast<double>(kSample<T>);
  const auto rank = static_cast<std::size_t>(expected + 4.5 * std::sqrt(expected) + 4);
  if (search.capacity > 0) {
    launch(sample_kernel<T, I>, 1, stream, search, kSample<T> / kLine, rank);
  } else {
    CUDA_CHECK(cudaMemsetAsync(&search.state->bound, 0xff, sizeof(Count), stream));
  }
}

}  // namespace

template <class T, class I>
std::size_t topk_workspace(std::size_t n, std::size_t k) {
  Search<T, I> search = search_for<T, I>(nullptr, nullptr, n, k);
  Carver measure(nullptr);
  carve(measure, search);
  return measure.used();
}

template <class T, class I>
void topk(const T* gradient, T* residual, std::size_t n, std::size_t k, I* indices, T* values,
          void* workspace, cudaStream_t stream) {
  const Search<T, I> search = search_in<T, I>(workspace, gradient, residual, n, k);
  clear(search, stream);
  if (n == 0) return;
  find_bound(search, stream);
  const unsigned grid = grid_for(search.tiles);
  launch(collect_kernel<T, I>, grid, stream, search);
  if (k == 0) return;
  for (unsigned round = 0; round < kRounds<T>; ++round) {
    launch(spread_kernel<T, I>, grid, stream, search, round);
  }
  take_winners(search, indices, values, stream);
}

std::size_t topk_nonfinite(const void* workspace, cudaStream_t stream) {
  return fetch(&static_cast<const State*>(workspace)->nonfinite, stream);
}

// The first pass of a search without room for candidates only counts them.
template <class T, class I>
void reach_count(const T* gradient, T* residual, std::size_t n, std::uint64_t bound,
                 void* workspace, cudaStream_t stream) {
  const Search<T, I> search = search_in<T, I>(workspace, gradient, residual, n, 0);
  clear(search, stream);
  if (n == 0) return;
  launch(set_kernel, 1, stream, search.state, bound, Count{0});
  launch(collect_kernel<T, I>, grid_for(search.tiles), stream, search);
}

std::size_t reach_found(const void* workspace, cudaStream_t stream) {
  return fetch(&static_cast<const State*>(workspace)->pooled, stream);
}

// The last passes of a search that has found the bound to be the cut, all ties included.
template <class T, class I>
void reach_take(const T* acc, T* residual, std::size_t n, std::uint64_t bound, std::size_t k,
                I* indices, T* values, void* workspace, cudaStream_t stream) {
  Search<T, I> search = search_in<T, I>(workspace, acc, residual, n, 0);
  search.k = k;
  if (k == 0) return;
  launch(set_kernel, 1, stream, search.state, bound, Count{k});
  take_winners(search, indices, values, stream);
}

#define PAROPT_CUDA_TOPK(T, I)                                                                    \
  template std::size_t topk_workspace<T, I>(std::size_t, std::size_t);                            \
  template void topk(const T*, T*, std::size_t, std::size_t, I*, T*, void*, cudaStream_t);        \
  template void reach_count<T, I>(const T*, T*, std::size_t, std::uint64_t, void*, cudaStream_t); \
  template void reach_take(const T*, T*, std::size_t, std::uint64_t, std::size_t, I*, T*, void*,  \
                           cudaStream_t);
#define PAROPT_CUDA_TOPK_BOTH(T)     \
  PAROPT_CUDA_TOPK(T, std::uint32_t) \
  PAROPT_CUDA_TOPK(T, std::uint64_t)
PAROPT_CUDA_TOPK_BOTH(float)
PAROPT_CUDA_TOPK_BOTH(double)
PAROPT_CUDA_TOPK_BOTH(Float16)
PAROPT_CUDA_TOPK_BOTH(BFloat16)

}  // namespace paropt::cuda
