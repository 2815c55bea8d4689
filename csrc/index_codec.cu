// Ascending positions as bytes, and back; docs/wire-format.md describes the formats.
//
// A block of threads has a block of 1024 indices. What blocks need to know of those before them,
// where their bytes begin and which index was the last, comes from a scan between two kernels: the
// first finds out how long every block is, the second writes. A decoder's first kernel checks
// everything as well, so that the second one writes all or nothing.

#include "index_codec.cuh"
#include "quantize_values.cuh"

namespace paropt::cuda {
namespace {

constexpr unsigned kBlock = 1024;              // indices with one parameter
constexpr unsigned kEach = kBlock / kThreads;  // neighbouring ones that a thread has
constexpr unsigned kEntry = 2;                 // bytes per block in the directory
constexpr unsigned kMostLowBits = 40, kMostUnaryBytes = 1023;
constexpr unsigned kLowWords = kBlock * kMostLowBits / 32, kUnaryWords = (kMostUnaryBytes + 1) / 4;
constexpr unsigned kBitmapTile = 4 * kThreads;  // words of a bitmap
constexpr Count kFar = Count{1} << 41;          // beyond every index
constexpr Count kNone = ~Count{0};

// What was wrong, in the low bits of State::fault; the high bits say in which block or at which
// index. The first fault by place is kept.
enum Fault : unsigned {
  kOrder = 1,  // indices to encode
  kLowBits,    // the parameter of a block
  kUnary,      // ones of a unary stream
  kSpare,      // low bits that no index has
  kAscending,  // indices that were decoded
  kBelow,      // the same, and n
  kSize,       // bytes that are missing or left over
  kOnes,       // of a bitmap
  kSpareOnes,  // bits of a bitmap beyond n
};
constexpr unsigned kFaultBits = 4;

struct State {
  Count bytes;  // that were written
  Count fault;
};

struct Work {
  State* state;
  std::uint16_t* entries;  // of the directory, by block
  Count* starts;           // of the bytes of blocks
  Count* spans;            // of the indices of blocks, then their starts
};

__device__ void report(State* state, std::size_t place, Fault fault) {
  atomicMin(&state->fault, Count{place} << kFaultBits | fault);
}

__device__ __forceinline__ unsigned block_count(std::size_t k, std::size_t block) {
  const std::size_t rest = k - block * kBlock;
  return rest < kBlock ? static_cast<unsigned>(rest) : kBlock;
}

__device__ __forceinline__ unsigned low_bytes(unsigned count, unsigned low_bits) {
  return (count * low_bits + 7) / 8;
}

__device__ __forceinline__ unsigned bit_length(std::uint64_t x) {
  return 64u - static_cast<unsigned>(__clzll(static_cast<long long>(x)));
}

// Turn numbers into the sums of those before them, and return the sum of all; sums that are far
// beyond every index stay there. One block.
template <class Get, class Set>
__device__ Count scan(std::size_t size, Get get, Set set) {
  const auto add = [](Count a, Count b) { return a + b < kFar ? a + b : kFar; };
  const std::size_t each = (size + kThreads - 1) / kThreads, begin = threadIdx.x * each;
  const std::size_t end = begin + each < size ? begin + each : size;
  Count mine = 0;
#pragma unroll 1
  for (std::size_t i = begin; i < end; ++i) mine = add(mine, get(i));
  Count total;  // of at most 2^10 * 2^41
  Count before = block_sum_below(mine, total);
#pragma unroll 1
  for (std::size_t i = begin; i < end; ++i) {
    const Count x = get(i);
    set(i, add(before, 0));
    before = add(before, x);
  }
  return total;
}

// ---- encoding ----------------------------------------------------------------------------------

// The indices of a block; [0] is one less than the first that could be in it, as are those beyond
// the last.
template <class I>
struct BlockIndices {
  std::uint64_t start;  // the first that could be in the block
  unsigned count;
  const I* at;

  __device__ BlockIndices(const I* indices, std::size_t k, std::size_t block)
      : start(block == 0 ? 0 : std::uint64_t{indices[block * kBlock - 1]} + 1),
        count(block_count(k, block)),
        at(indices + block * kBlock) {}

  __device__ std::uint64_t gap(unsigned i) const {
    return at[i] - (i == 0 ? start : std::uint64_t{at[i - 1]} + 1);
  }
  __device__ std::uint64_t distance(unsigned i) const { return at[i] - start; }
};

struct Parameter {
  unsigned low_bits, unary_bytes;
};

// See docs/wire-format.md. Called by all threads.
template <class I>
__device__ Parameter plan_rice_block(const BlockIndices<I>& block) {
  const std::uint64_t gaps = block.distance(block.count - 1) + 1 - block.count;
  const unsigned width = bit_length(gaps * 177 / 256 / block.count);
  const unsigned l = width > 0 ? width - 1 : 0;
  Count sum = 0, next = 0;
  for (unsigned i = threadIdx.x; i < block.count; i += kThreads) {
    const std::uint64_t quotient = block.gap(i) >> l;
    sum += quotient;
    next += quotient >> 1;
  }
  sum = block_sum(sum);
  next = block_sum(next);
  const bool more = next + block.count < sum;
  const Count bits = block.count + (more ? next : sum);
  return {l + more, static_cast<unsigned>((bits + 7) / 8)};
}

template <class I>
__device__ Parameter plan_elias_fano_block(const BlockIndices<I>& block) {
  const std::uint64_t last = block.distance(block.count - 1);
  unsigned l = 0;
  while ((last >> l) - (last >> (l + 1)) > block.count) ++l;
  return {l, static_cast<unsigned>(((last >> l) + block.count + 7) / 8)};
}

template <bool kGaps, class I>
__global__ void __launch_bounds__(kThreads)
    plan_kernel(const I* indices, std::size_t k, std::uint64_t n, Work work) {
  for (std::size_t b = blockIdx.x; b * kBlock < k; b += gridDim.x) {
    const BlockIndices<I> block(indices, k, b);
    bool fine = true;
    for (unsigned i = threadIdx.x; i < block.count; i += kThreads) {
      const std::size_t at = b * kBlock + i;
      if ((at > 0 && indices[at - 1] >= indices[at]) || indices[at] >= n) {
        fine = false;
        report(work.state, at, kOrder);
      }
    }
    if (__syncthreads_or(!fine)) continue;
    const Parameter chosen = kGaps ? plan_rice_block(block) : plan_elias_fano_block(block);
    if (threadIdx.x > 0) continue;
    work.entries[b] = static_cast<std::uint16_t>(chosen.low_bits << 10 | chosen.unary_bytes);
    work.starts[b] = low_bytes(block.count, chosen.low_bits) + chosen.unary_bytes;
  }
}

__global__ void __launch_bounds__(kThreads) place_kernel(std::size_t k, Work work) {
  if (work.state->fault != kNone) return;
  const std::size_t blocks = ceil_div(k, kBlock);
  Count* starts = work.starts;
  const Count total = scan(
      blocks, [=](std::size_t i) { return starts[i]; },
      [=](std::size_t i, Count start) { starts[i] = start; });
  if (threadIdx.x == 0) work.state->bytes = blocks * kEntry + total;
}

// Set `bits`, from bit `at` on; other threads may set bits of the same word.
__device__ void put_bits(std::uint32_t* words, unsigned at, std::uint64_t bits) {
  for (unsigned word = at / 32, offset = at % 32; bits != 0; ++word) {
    const auto part = static_cast<std::uint32_t>(bits << offset);
    if (part != 0) atomicOr(&words[word], part);
    bits >>= 32 - offset;
    offset = 0;
  }
}

// Copy bytes from words in shared memory to any place.
__device__ void copy_out(const std::uint32_t* words, unsigned bytes, std::uint8_t* to) {
  const auto misfit = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(to) % 4);
  const unsigned head = misfit == 0 ? 0 : 4 - misfit, whole = bytes < head ? 0 : (bytes - head) / 4;
  const auto byte = [=](unsigned i) {
    return static_cast<std::uint8_t>(words[i / 4] >> 8 * (i % 4));
  };
  for (unsigned i = threadIdx.x; i < whole; i += kThreads) {
    const unsigned at = head + 4 * i;
    const std::uint64_t two = words[at / 4] | std::uint64_t{words[at / 4 + 1]} << 32;
    *reinterpret_cast<std::uint32_t*>(to + at) = static_cast<std::uint32_t>(two >> 8 * (at % 4));
  }
  if (threadIdx.x < head && threadIdx.x < bytes) to[threadIdx.x] = byte(threadIdx.x);
  const unsigned rest = head + 4 * whole;
  if (rest + threadIdx.x < bytes) to[rest + threadIdx.x] = byte(rest + threadIdx.x);
}

// Both streams of a block, made in `words`.
template <bool kGaps, class I>
__device__ void make_streams(const BlockIndices<I>& block, unsigned low_bits, unsigned unary_at,
                             std::uint32_t* words) {
  const std::uint64_t mask = (std::uint64_t{1} << low_bits) - 1;
  const unsigned first = threadIdx.x * kEach;
  std::uint64_t split[kEach];
  unsigned mine = 0, all;
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const unsigned i = first + j;
    if (i >= block.count) break;
    split[j] = kGaps ? block.gap(i) : block.distance(i);
    mine += static_cast<unsigned>(split[j] >> low_bits);
  }
  unsigned before = block_sum_below(kGaps ? mine : 0u, all);
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const unsigned i = first + j;
    if (i >= block.count) break;
    const auto high = static_cast<unsigned>(split[j] >> low_bits);
    before = kGaps ? before + high : high;
    put_bits(words, i * low_bits, split[j] & mask);
    put_bits(words, unary_at + before + i, 1);
  }
}

template <bool kGaps, class I>
__global__ void __launch_bounds__(kThreads)
    encode_kernel(const I* indices, std::size_t k, Work work, std::uint8_t* out) {
  __shared__ std::uint32_t words[kLowWords + kUnaryWords + 1];
  if (work.state->fault != kNone) return;
  const std::size_t blocks = ceil_div(k, kBlock);
  for (std::size_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const BlockIndices<I> block(indices, k, b);
    const unsigned entry = work.entries[b], low_bits = entry >> 10;
    const unsigned lows = low_bytes(block.count, low_bits);
    const unsigned bytes = lows + (entry & kMostUnaryBytes);
    for (unsigned i = threadIdx.x; i <= ceil_div(bytes, 4); i += kThreads) words[i] = 0;
    __syncthreads();
    make_streams<kGaps>(block, low_bits, 8 * lows, words);
    __syncthreads();
    copy_out(words, bytes, out + blocks * kEntry + work.starts[b]);
    if (threadIdx.x == 0)
      reinterpret_cast<std::uint16_t*>(out)[b] = static_cast<std::uint16_t>(entry);
    __syncthreads();
  }
}

template <class I>
__global__ void __launch_bounds__(kThreads)
    check_kernel(const I* indices, std::size_t k, std::uint64_t n, State* state, Fault fault) {
  const std::size_t in_block = fault == kOrder ? 1 : kBlock;
  for (std::size_t i = grid_thread(); i < k; i += grid_threads()) {
    if (i > 0 && indices[i - 1] >= indices[i]) report(state, i / in_block, fault);
    if (indices[i] >= n) report(state, i / in_block, fault == kOrder ? kOrder : kBelow);
  }
}

template <class I, class U>
__global__ void __launch_bounds__(kThreads)
    raw_kernel(const I* indices, std::size_t k, State* state, U* out) {
  if (state->fault != kNone) return;
  for (std::size_t i = grid_thread(); i < k; i += grid_threads()) {
    out[i] = static_cast<U>(indices[i]);
  }
  if (grid_thread() == 0) state->bytes = k * sizeof(U);
}

// The bitmap is all zeros before; of a word that is cut off by its end only the bytes are there.
template <class I>
__global__ void __launch_bounds__(kThreads)
    bitmap_kernel(const I* indices, std::size_t k, std::uint64_t n, State* state,
                  std::uint8_t* out) {
  if (state->fault != kNone) return;
  const std::size_t bytes = (n + 7) / 8, whole = bytes / 4;
  auto* words = reinterpret_cast<std::uint32_t*>(out);
  for (std::size_t i = grid_thread(); i < k; i += grid_threads()) {
    const std::uint64_t index = indices[i];
    if (index / 32 < whole) atomicOr(&words[index / 32], 1u << index % 32);
  }
  if (grid_thread() > 0) return;
  state->bytes = bytes;
  for (std::size_t i = k; i-- > 0 && indices[i] / 32 >= whole;) {
    out[indices[i] / 8] = static_cast<std::uint8_t>(out[indices[i] / 8] | 1u << indices[i] % 8);
  }
}

// ---- decoding ----------------------------------------------------------------------------------

// What is done with the indices that are decoded: they are listed,
template <class I>
struct List {
  I* out;
  __device__ void operator()(std::size_t i, std::uint64_t index) const {
    out[i] = static_cast<I>(index);
  }
};

// or values are added at them. One index is decoded by one thread, and none occurs twice.
template <class T>
struct Add {
  Values values;
  T scale;
  T* dense;
  __device__ void operator()(std::size_t i, std::uint64_t index) const {
    if constexpr (sizeof(T) == 8) {
      dense[index] += scale * reinterpret_cast<const double*>(values.data)[i];
    } else {
      dense[index] += scale * value_at(values, i);
    }
  }
};

struct None {};

// Read the directory: find the start of every block, and whether they all fit. One block.
__global__ void __launch_bounds__(kThreads)
    directory_kernel(const std::uint8_t* data, std::size_t size, std::size_t k, Work work) {
  const auto* entries = reinterpret_cast<const std::uint16_t*>(data);
  const std::size_t blocks = ceil_div(k, kBlock);
  State* state = work.state;
  Count* starts = work.starts;
  const Count total = scan(
      blocks,
      [=](std::size_t b) -> Count {
        const unsigned entry = entries[b], low_bits = entry >> 10;
        if (low_bits > kMostLowBits) report(state, b, kLowBits);
        return low_bytes(block_count(k, b), low_bits) + (entry & kMostUnaryBytes);
      },
      [=](std::size_t b, Count start) { starts[b] = start; });
  if (threadIdx.x == 0 && blocks * kEntry + total != size) report(state, blocks, kSize);
}

// One block of indices while it is decoded, in shared memory.
struct Streams {
  std::uint32_t lows[kLowWords + 2];
  std::uint32_t unary[kUnaryWords];
  std::uint16_t ones[kBlock];  // the places of the ones of the unary stream
};

__device__ void load_bytes(const std::uint8_t* from, unsigned bytes, std::uint32_t* words,
                           unsigned size) {
  auto* to = reinterpret_cast<std::uint8_t*>(words);
  for (unsigned i = threadIdx.x; i < 4 * size; i += kThreads) to[i] = i < bytes ? from[i] : 0;
}

// List the ones of the unary stream and return how many there are.
__device__ unsigned list_ones(Streams& streams) {
  constexpr unsigned kWords = kUnaryWords / kThreads > 0 ? kUnaryWords / kThreads : 1;
  const unsigned first = threadIdx.x * kWords;
  unsigned mine = 0, all;
  for (unsigned w = first; w < first + kWords && w < kUnaryWords; ++w) {
    mine += static_cast<unsigned>(__popc(streams.unary[w]));
  }
  unsigned rank = block_sum_below(mine, all);
  for (unsigned w = first; w < first + kWords && w < kUnaryWords; ++w) {
    for (std::uint32_t word = streams.unary[w]; word != 0; word &= word - 1, ++rank) {
      const auto bit = static_cast<unsigned>(__ffs(static_cast<int>(word)) - 1);
      if (rank < kBlock) streams.ones[rank] = static_cast<std::uint16_t>(32 * w + bit);
    }
  }
  __syncthreads();
  return all;
}

__device__ std::uint64_t low_of(const Streams& streams, unsigned i, unsigned low_bits) {
  const unsigned at = i * low_bits, word = at / 32, offset = at % 32;
  std::uint64_t bits = streams.lows[word] | std::uint64_t{streams.lows[word + 1]} << 32;
  bits >>= offset;
  if (offset > 0) bits |= std::uint64_t{streams.lows[word + 2]} << (64 - offset);
  return bits & ((std::uint64_t{1} << low_bits) - 1);
}

// Decode a block: the distances of its indices from its start, kEach to a thread. `fault` is 0 or
// says what is wrong, to all threads.
template <bool kGaps>
__device__ void decode_block(const std::uint8_t* data, unsigned entry, unsigned count,
                             Streams& streams, Count* distances, unsigned& fault) {
  const unsigned low_bits = entry >> 10, unary_bytes = entry & kMostUnaryBytes;
  const unsigned lows = low_bytes(count, low_bits);
  load_bytes(data, lows, streams.lows, (lows + 3) / 4 + 2);
  load_bytes(data + lows, unary_bytes, streams.unary, kUnaryWords);
  __syncthreads();
  const unsigned ones = list_ones(streams);
  const bool ends = unary_bytes > 0 && data[lows + unary_bytes - 1] != 0;
  const unsigned spare = 8 * lows - count * low_bits;
  fault = 0;
  if (ones != count || !ends) {
    fault = kUnary;
  } else if (spare > 0 && data[lows - 1] >> (8 - spare) != 0) {
    fault = kSpare;
  }
  if (fault != 0) return;
  const unsigned first = threadIdx.x * kEach;
  Count sum = 0, all;
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const unsigned i = first + j;
    distances[j] = i < count ? low_of(streams, i, low_bits) : 0;
    sum += distances[j];
  }
  Count before = block_sum_below(kGaps ? sum : Count{0}, all);
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const unsigned i = first + j;
    if (i >= count) break;
    const Count high = Count{streams.ones[i] - i} << low_bits;
    before = kGaps ? before + distances[j] : distances[j];
    distances[j] = high + before + (kGaps ? i : 0);
  }
}

// Whether the distances of a block ascend; [first - 1] is another thread's.
__device__ bool ascends(const Streams& streams, const Count* distances, unsigned first,
                        unsigned count, unsigned low_bits) {
  Count before = 0;
  if (first > 0 && first < count) {
    before = (Count{streams.ones[first - 1] - (first - 1)} << low_bits) +
             low_of(streams, first - 1, low_bits);
  }
  for (unsigned j = 0; j < kEach && first + j < count; ++j) {
    if (first + j > 0 && distances[j] <= before) return false;
    before = distances[j];
  }
  return true;
}

// Check every block and find out how many positions it spans.
template <bool kGaps>
__global__ void __launch_bounds__(kThreads)
    span_kernel(const std::uint8_t* data, std::size_t k, Work work) {
  __shared__ Streams streams;
  if (work.state->fault != kNone) return;
  const std::size_t blocks = ceil_div(k, kBlock);
  const auto* entries = reinterpret_cast<const std::uint16_t*>(data);
  for (std::size_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const unsigned entry = entries[b], count = block_count(k, b), first = threadIdx.x * kEach;
    Count distances[kEach];
    unsigned fault;
    decode_block<kGaps>(data + blocks * kEntry + work.starts[b], entry, count, streams, distances,
                        fault);
    if (fault == 0 && !kGaps) {
      const bool fine = ascends(streams, distances, first, count, entry >> 10);
      if (__syncthreads_or(!fine)) fault = kAscending;
    }
    if (fault != 0 && threadIdx.x == 0) report(work.state, b, static_cast<Fault>(fault));
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) {
      if (fault == 0 && first + j + 1 == count) {
        work.spans[b] = distances[j] + 1 < kFar ? distances[j] + 1 : kFar;
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    start_kernel(std::uint64_t n, std::size_t k, Work work) {
  if (work.state->fault != kNone) return;
  Count* spans = work.spans;
  const std::size_t blocks = ceil_div(k, kBlock);
  const Count end = scan(
      blocks, [=](std::size_t b) { return spans[b]; },
      [=](std::size_t b, Count start) { spans[b] = start; });
  if (threadIdx.x == 0 && end > n) report(work.state, blocks - 1, kBelow);
}

template <bool kGaps, class Sink>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(const std::uint8_t* data, std::size_t k, Work work, Sink sink) {
  __shared__ Streams streams;
  if (work.state->fault != kNone) return;
  const std::size_t blocks = ceil_div(k, kBlock);
  const auto* entries = reinterpret_cast<const std::uint16_t*>(data);
  for (std::size_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const unsigned count = block_count(k, b), first = threadIdx.x * kEach;
    Count distances[kEach];
    unsigned fault;
    decode_block<kGaps>(data + blocks * kEntry + work.starts[b], entries[b], count, streams,
                        distances, fault);
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) {
      if (first + j < count) sink(b * kBlock + first + j, work.spans[b] + distances[j]);
    }
    __syncthreads();
  }
}

// A word of a bitmap; bytes beyond its end are zero.
__device__ std::uint32_t bitmap_word(const std::uint8_t* data, std::size_t word, std::size_t size) {
  if (4 * word + 4 <= size) return reinterpret_cast<const std::uint32_t*>(data)[word];
  std::uint32_t bits = 0;
  for (std::size_t i = 4 * word; i < size; ++i) bits |= std::uint32_t{data[i]} << 8 * (i % 4);
  return bits;
}

// The words of a tile that one thread has, and how many of their bits are set.
struct BitmapPart {
  std::size_t first;
  std::uint32_t words[4];

  __device__ BitmapPart(const std::uint8_t* data, std::size_t size, std::size_t tile)
      : first(tile * kBitmapTile + threadIdx.x * 4) {
    for (unsigned w = 0; w < 4; ++w) words[w] = bitmap_word(data, first + w, size);
  }
  __device__ unsigned ones() const {
    int ones = 0;
    for (std::uint32_t word : words) ones += __popc(word);
    return static_cast<unsigned>(ones);
  }
};

__global__ void __launch_bounds__(kThreads)
    count_ones_kernel(const std::uint8_t* data, std::size_t size, std::uint64_t n, Work work) {
  if (grid_thread() == 0 && n % 8 != 0 && data[size - 1] >> (n % 8) != 0) {
    report(work.state, 0, kSpareOnes);
  }
  for (std::size_t tile = blockIdx.x; tile * kBitmapTile * 4 < size; tile += gridDim.x) {
    const unsigned ones = block_sum(BitmapPart(data, size, tile).ones());
    if (threadIdx.x == 0) work.starts[tile] = ones;
  }
}

__global__ void __launch_bounds__(kThreads)
    rank_ones_kernel(std::size_t tiles, std::size_t k, Work work) {
  Count* starts = work.starts;
  const Count total = scan(
      tiles, [=](std::size_t i) { return starts[i]; },
      [=](std::size_t i, Count start) { starts[i] = start; });
  if (threadIdx.x == 0 && total != k) report(work.state, 0, kOnes);
}

template <class Sink>
__global__ void __launch_bounds__(kThreads)
    list_ones_kernel(const std::uint8_t* data, std::size_t size, Work work, Sink sink) {
  if (work.state->fault != kNone) return;
  for (std::size_t tile = blockIdx.x; tile * kBitmapTile * 4 < size; tile += gridDim.x) {
    const BitmapPart part(data, size, tile);
    unsigned all;
    std::size_t rank = work.starts[tile] + block_sum_below(part.ones(), all);
    for (unsigned w = 0; w < 4; ++w) {
      for (std::uint32_t word = part.words[w]; word != 0; word &= word - 1) {
        const auto bit = static_cast<unsigned>(__ffs(static_cast<int>(word)) - 1);
        sink(rank++, (part.first + w) * 32 + bit);
      }
    }
  }
}

template <class U, class Sink>
__global__ void __launch_bounds__(kThreads)
    list_raw_kernel(const U* indices, std::size_t k, const State* state, Sink sink) {
  if (state->fault != kNone) return;
  for (std::size_t i = grid_thread(); i < k; i += grid_threads()) sink(i, indices[i]);
}

template <class Sink>
__global__ void __launch_bounds__(kThreads) list_all_kernel(std::size_t k, Sink sink) {
  for (std::size_t i = grid_thread(); i < k; i += grid_threads()) sink(i, i);
}

// ---- launchers ---------------------------------------------------------------------------------

Work carve(Carver& carver, std::uint64_t n, std::size_t k, Codec codec) {
  Work work = {};
  const bool split = codec == Codec::rice || codec == Codec::elias_fano;
  const std::size_t blocks = split ? ceil_div(k, kBlock) : 0;
  const std::size_t tiles = codec == Codec::bitmap ? ceil_div((n + 7) / 8, kBitmapTile * 4) : 0;
  work.state = carver.take<State>(1);
  work.entries = carver.take<std::uint16_t>(blocks);
  work.starts = carver.take<Count>(std::max(blocks, tiles));
  work.spans = carver.take<Count>(blocks);
  return work;
}

Work work_in(void* workspace, std::uint64_t n, std::size_t k, Codec codec, cudaStream_t stream) {
  Carver carver(workspace);
  const Work work = carve(carver, n, k, codec);
  CUDA_CHECK(cudaMemsetAsync(&work.state->bytes, 0, sizeof(Count), stream));
  CUDA_CHECK(cudaMemsetAsync(&work.state->fault, 0xff, sizeof(Count), stream));
  return work;
}

unsigned grid_of_items(std::size_t items) { return grid_for(ceil_div(items, kThreads)); }

template <bool kGaps, class I>
void plan(const I* indices, std::size_t k, std::uint64_t n, const Work& work, cudaStream_t stream) {
  if (k == 0) return;
  launch(plan_kernel<kGaps, I>, grid_for(ceil_div(k, kBlock)), stream, indices, k, n, work);
  launch(place_kernel, 1, stream, k, work);
}

template <bool kGaps, class I>
void encode_split(const I* indices, std::size_t k, std::uint64_t n, const Work& work,
                  std::uint8_t* out, cudaStream_t stream) {
  plan<kGaps>(indices, k, n, work, stream);
  if (k == 0) return;
  launch(encode_kernel<kGaps, I>, grid_for(ceil_div(k, kBlock)), stream, indices, k, work, out);
}

bool narrow(std::uint64_t n) { return n <= std::uint64_t{1} << 32; }

template <class Sink>
constexpr bool kChecksOnly = std::is_same_v<Sink, None>;

template <bool kGaps, class Sink>
void decode_split(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                  const Work& work, Sink sink, cudaStream_t stream) {
  const std::size_t blocks = ceil_div(k, kBlock);
  const unsigned grid = grid_for(blocks);
  launch(directory_kernel, 1, stream, data, size, k, work);
  launch(span_kernel<kGaps>, grid, stream, data, k, work);
  launch(start_kernel, 1, stream, n, k, work);
  if constexpr (!kChecksOnly<Sink>) {
    launch(decode_kernel<kGaps, Sink>, grid, stream, data, k, work, sink);
  }
}

template <class Sink>
void decode_bitmap(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                   const Work& work, Sink sink, cudaStream_t stream) {
  if (size == 0) return;
  const std::size_t tiles = ceil_div(size, kBitmapTile * 4);
  launch(count_ones_kernel, grid_for(tiles), stream, data, size, n, work);
  launch(rank_ones_kernel, 1, stream, tiles, k, work);
  if constexpr (!kChecksOnly<Sink>) {
    launch(list_ones_kernel<Sink>, grid_for(tiles), stream, data, size, work, sink);
  }
}

template <class U, class Sink>
void decode_raw(const std::uint8_t* data, std::uint64_t n, std::size_t k, const Work& work,
                Sink sink, cudaStream_t stream) {
  if (k == 0) return;
  const auto* indices = reinterpret_cast<const U*>(data);
  launch(check_kernel<U>, grid_of_items(k), stream, indices, k, n, work.state, kAscending);
  if constexpr (!kChecksOnly<Sink>) {
    launch(list_raw_kernel<U, Sink>, grid_of_items(k), stream, indices, k, work.state, sink);
  }
}

// What the host can tell by numbers alone; a fault stands in the state as if a kernel had found it.
bool size_fits(std::size_t size, std::uint64_t n, std::size_t k, Codec codec) {
  if (codec == Codec::bitmap) return size == (n + 7) / 8 && (size > 0 || k == 0);
  if (codec == Codec::raw) return size == k * (narrow(n) ? 4 : 8);
  if (codec == Codec::full) return size == 0 && k == n;
  return k == 0 ? size == 0 : size / kEntry >= ceil_div(k, kBlock);
}

__global__ void fault_kernel(State* state, Fault fault) {
  if (threadIdx.x == 0) report(state, 0, fault);
}

template <class Sink>
void walk(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k, Codec codec,
          void* workspace, Sink sink, cudaStream_t stream) {
  if (k > std::size_t{1} << 34) {
    throw std::invalid_argument("k must be at most 2^34 on the GPU, got " + std::to_string(k));
  }
  const Work work = work_in(workspace, n, k, codec, stream);
  if (!size_fits(size, n, k, codec)) return launch(fault_kernel, 1, stream, work.state, kSize);
  if (codec == Codec::bitmap) return decode_bitmap(data, size, n, k, work, sink, stream);
  if (k == 0) return;
  switch (codec) {
    case Codec::rice:
      return decode_split<true>(data, size, n, k, work, sink, stream);
    case Codec::elias_fano:
      return decode_split<false>(data, size, n, k, work, sink, stream);
    case Codec::raw:
      if (narrow(n)) return decode_raw<std::uint32_t>(data, n, k, work, sink, stream);
      return decode_raw<std::uint64_t>(data, n, k, work, sink, stream);
    default:
      if constexpr (!kChecksOnly<Sink>) {
        launch(list_all_kernel<Sink>, grid_of_items(k), stream, k, sink);
      }
  }
}

State fetch_state(const void* workspace, cudaStream_t stream) {
  return fetch(static_cast<const State*>(workspace), stream);
}

std::uint64_t bytes_of(const void* workspace, cudaStream_t stream) {
  const State state = fetch_state(workspace, stream);
  if (state.fault == kNone) return state.bytes;
  throw std::invalid_argument("indices must be strictly ascending and below n, entry " +
                              std::to_string(state.fault >> kFaultBits) + " is not");
}

std::string fault_text(Count fault) {
  const std::string block = " in block " + std::to_string(fault >> kFaultBits);
  switch (static_cast<unsigned>(fault & ((1u << kFaultBits) - 1))) {
    case kLowBits:
      return "low bits must be at most " + std::to_string(kMostLowBits) + block;
    case kUnary:
      return "unary stream must hold as many ones as the block has indices and end with one" +
             block;
    case kSpare:
      return "spare low bits must be zero" + block;
    case kAscending:
      return "indices must be strictly ascending" + block;
    case kBelow:
      return "indices must be below n";
    case kOnes:
      return "bitmap must hold as many ones as there are indices";
    case kSpareOnes:
      return "spare bits of the bitmap must be zero";
    default:
      return "index stream is truncated or has trailing bytes";
  }
}

}  // namespace

std::size_t codec_workspace(std::uint64_t n, std::size_t k, Codec codec) {
  Carver measure(nullptr);
  carve(measure, n, k, codec);
  return measure.used();
}

template <class I>
void plan_rice(const I* indices, std::size_t k, std::uint64_t n, void* workspace,
               cudaStream_t stream) {
  plan<true>(indices, k, n, work_in(workspace, n, k, Codec::rice, stream), stream);
}

std::uint64_t rice_bytes(const void* workspace, cudaStream_t stream) {
  return bytes_of(workspace, stream);
}

template <class I>
void encode_indices(const I* indices, std::size_t k, std::uint64_t n, Codec codec,
                    std::uint8_t* out, void* workspace, cudaStream_t stream) {
  const Work work = work_in(workspace, n, k, codec, stream);
  if (codec == Codec::rice) return encode_split<true>(indices, k, n, work, out, stream);
  if (codec == Codec::elias_fano) return encode_split<false>(indices, k, n, work, out, stream);
  const unsigned grid = grid_of_items(k);
  launch(check_kernel<I>, grid, stream, indices, k, n, work.state, kOrder);
  if (codec == Codec::bitmap) {
    CUDA_CHECK(cudaMemsetAsync(out, 0, (n + 7) / 8, stream));
    launch(bitmap_kernel<I>, grid, stream, indices, k, n, work.state, out);
  } else if (narrow(n)) {
    launch(raw_kernel<I, std::uint32_t>, grid, stream, indices, k, work.state,
           reinterpret_cast<std::uint32_t*>(out));
  } else {
    launch(raw_kernel<I, std::uint64_t>, grid, stream, indices, k, work.state,
           reinterpret_cast<std::uint64_t*>(out));
  }
}

std::uint64_t encoded_bytes(const void* workspace, cudaStream_t stream) {
  return bytes_of(workspace, stream);
}

template <class I>
void decode_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                    Codec codec, I* out, void* workspace, cudaStream_t stream) {
  walk(data, size, n, k, codec, workspace, List<I>{out}, stream);
}

void check_decoded(const void* workspace, cudaStream_t stream) {
  const State state = fetch_state(workspace, stream);
  if (state.fault != kNone) throw FormatError(fault_text(state.fault));
}

void validate_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                      Codec codec, void* workspace, cudaStream_t stream) {
  walk(data, size, n, k, codec, workspace, None{}, stream);
}

template <class T>
void decode_scatter_add(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                        Codec codec, ValueType type, const std::uint8_t* values, T scale, T* dense,
                        void* workspace, cudaStream_t stream) {
  const Add<T> sink = {{type, values, k}, scale, dense};
  walk(data, size, n, k, codec, workspace, sink, stream);
}

#define PAROPT_CUDA_CODEC(I)                                                                      \
  template void plan_rice(const I*, std::size_t, std::uint64_t, void*, cudaStream_t);             \
  template void encode_indices(const I*, std::size_t, std::uint64_t, Codec, std::uint8_t*, void*, \
                               cudaStream_t);                                                     \
  template void decode_indices(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t,      \
                               Codec, I*, void*, cudaStream_t);
PAROPT_CUDA_CODEC(std::uint32_t)
PAROPT_CUDA_CODEC(std::uint64_t)
template void decode_scatter_add(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t,
                                 Codec, ValueType, const std::uint8_t*, float, float*, void*,
                                 cudaStream_t);
template void decode_scatter_add(const std::uint8_t*, std::size_t, std::uint64_t, std::size_t,
                                 Codec, ValueType, const std::uint8_t*, double, double*, void*,
                                 cudaStream_t);

}  // namespace paropt::cuda
