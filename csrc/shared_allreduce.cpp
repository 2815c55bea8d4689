// The contract and the three ways (flat, direct, staged) are in shared_allreduce.hpp.
#include "shared_allreduce.hpp"

#include <algorithm>
#include <type_traits>

namespace paropt {
namespace {

constexpr std::size_t kLine = 64;
// Of a part, if the vector is long enough: both slots of two ranks then stay in the L2 cache.
constexpr std::size_t kLeastPart = 32 * 1024;
constexpr std::size_t kMostPart = 128 * 1024;
// Bytes that are reduced flat where each rank has a core of its own; where it has none: all that a
// record carries.
constexpr std::size_t kFlatOwnCore = 16 * 1024;

template <class T>
Dtype dtype_of();
template <>
Dtype dtype_of<float>() {
  return Dtype::float32;
}
template <>
Dtype dtype_of<double>() {
  return Dtype::float64;
}
template <>
Dtype dtype_of<Float16>() {
  return Dtype::float16;
}
template <>
Dtype dtype_of<BFloat16>() {
  return Dtype::bfloat16;
}
template <>
Dtype dtype_of<std::int32_t>() {
  return Dtype::int32;
}
template <>
Dtype dtype_of<std::int64_t>() {
  return Dtype::int64;
}

// Elements [0, n) in `parts` of about equal length, cut between cache lines.
template <class T>
std::size_t part_begin(std::size_t n, int parts, int part) {
  constexpr std::size_t kPerLine = kLine / sizeof(T);
  const std::size_t lines = (n + kPerLine - 1) / kPerLine;
  const std::size_t line = lines * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
  return std::min(n, line * kPerLine);
}

}  // namespace

void SharedTraffic::count(std::size_t n, std::size_t item_bytes, int rank, int size, double took,
                          double waiting) {
  const auto chunk = [&](int owner) {
    return n / size + (owner % size < static_cast<int>(n % size));
  };
  calls += 1;
  sent += (2 * n - chunk(rank) - chunk(rank + 1)) * item_bytes;
  received += (2 * n - chunk(rank) - chunk(rank + size - 1)) * item_bytes;
  seconds += took;
  waited += waiting;
}

SharedAllreduce::SharedAllreduce(SharedGroup& group)
    : group_(group),
      rank_(group.rank()),
      size_(group.size()),
      flat_bytes_(group.own_core() ? kFlatOwnCore : SharedGroup::kCarried),
      inputs_(static_cast<std::size_t>(group.size())),
      outputs_(inputs_.size()) {}

// ---- flat ------------------------------------------------------------------------------------

template <class T>
void SharedAllreduce::flat(const T* in, T* out, std::size_t n, Op op) {
  for (int other = 0; other < size_; ++other) {
    inputs_[other] = group_.payload(other, n * sizeof(T));
  }
  inputs_[rank_] = in;
  outputs_[0] = out;
  reduce<T>(op, inputs_.data(), size_, outputs_.data(), 1, n, op == Op::mean ? size_ : 1);
}

// ---- direct ----------------------------------------------------------------------------------

template <class T>
void SharedAllreduce::direct(BufferPlaces places, std::size_t n, Op op) {
  // Two parts for each rank, the later one first: what the ranks have written last is in their
  // caches still, for half of a vector as long as a cache.
  for (const int part : {size_ + rank_, rank_}) {
    const std::size_t begin = part_begin<T>(n, 2 * size_, part);
    const std::size_t count = part_begin<T>(n, 2 * size_, part + 1) - begin;
    for (int other = 0; other < size_; ++other) {
      inputs_[other] = reinterpret_cast<T*>(group_.at(places.in, other)) + begin;
      // The own output first: the others then do not all begin with the same rank's memory.
      outputs_[other] =
          reinterpret_cast<T*>(group_.at(places.out, (rank_ + other) % size_)) + begin;
    }
    reduce<T>(op, inputs_.data(), size_, outputs_.data(), size_, count, op == Op::mean ? size_ : 1);
  }
  group_.signal(Flag::direct, group_.calls());
  group_.await_all(Flag::direct, group_.calls());
}

// ---- staged ----------------------------------------------------------------------------------

// One call's rounds. Round i is about [i * length, (i+1) * length) of the buffer; its parts are cut
// as in part_begin, and part p lies at the same offset in every slot.
template <class T>
struct SharedAllreduce::Round {
  const T* in;
  T* out;
  std::size_t n;
  Op op;
  int owners;
  const std::function<void(T*, std::size_t)>* between;
  std::size_t length;
  std::size_t slot_bytes;
  std::uint64_t call;

  std::size_t count() const { return (n + length - 1) / length; }
  std::size_t begin(std::size_t index) const { return index * length; }
  Part part(std::size_t index, int owner) const {
    const std::size_t size = std::min(length, n - begin(index));
    const std::size_t from = part_begin<T>(size, owners, owner);
    return {from, part_begin<T>(size, owners, owner + 1) - from};
  }
  std::size_t slot(std::size_t index) const { return index % 2 * slot_bytes; }
  // What the counters say when round `index` is done: more than in any call before, also one that
  // ended with a mismatch.
  std::uint64_t done(std::size_t index) const { return (call << 32) + index + 1; }
};

template <class T>
SharedAllreduce::Round<T> SharedAllreduce::rounds(const T* in, T* out, std::size_t n, Op op,
                                                  int owners) const {
  const std::size_t ranks = static_cast<std::size_t>(size_);
  const std::size_t part = std::clamp(n * sizeof(T) / (4 * ranks), kLeastPart, kMostPart);
  const std::size_t slot = group_.scratch_bytes() / 2;
  const std::size_t bytes = group_.own_core() ? std::min(part * ranks, slot) : slot;
  const std::size_t length = bytes / kLine * (kLine / sizeof(T));
  return {in, out, n, op, owners, nullptr, length, slot, group_.calls()};
}

// The slot is free: what the others put into it two rounds before has been taken.
template <class T>
void SharedAllreduce::stage(const Round<T>& round, std::size_t index) {
  T* const slot = reinterpret_cast<T*>(group_.scratch(rank_) + round.slot(index));
  const T* const from = round.in + round.begin(index);
  for (int owner = 0; owner < round.owners; ++owner) {
    const Part part = round.part(index, owner);
    if (owner == rank_) continue;
    copy_between(slot + part.begin, from + part.begin, part.count * sizeof(T));
  }
  group_.signal(Flag::staged, round.done(index));
}

template <class T>
void SharedAllreduce::reduce_own(const Round<T>& round, std::size_t index) {
  const std::uint64_t done = round.done(index);
  if (rank_ < round.owners) {
    group_.await_all(Flag::staged, done);
    const Part part = round.part(index, rank_);
    T* const own = round.out + round.begin(index) + part.begin;
    for (int other = 0; other < size_; ++other) {
      T* const slot = reinterpret_cast<T*>(group_.scratch(other) + round.slot(index));
      inputs_[other] = outputs_[other] = slot + part.begin;
    }
    inputs_[rank_] = round.in + round.begin(index) + part.begin;
    outputs_[rank_] = own;
    const int divisor = round.op == Op::mean ? size_ : 1;
    if (round.between == nullptr) {
      reduce<T>(round.op, inputs_.data(), size_, outputs_.data(), size_, part.count, divisor);
    } else {
      reduce<T>(round.op, inputs_.data(), size_, &outputs_[rank_], 1, part.count, divisor);
      (*round.between)(own, part.count);
      for (int other = 0; other < size_; ++other) {
        if (other != rank_) std::memcpy(outputs_[other], own, part.count * sizeof(T));
      }
    }
  }
  group_.signal(Flag::reduced, done);
}

template <class T>
void SharedAllreduce::take(const Round<T>& round, std::size_t index) {
  const T* const slot = reinterpret_cast<const T*>(group_.scratch(rank_) + round.slot(index));
  T* const to = round.out + round.begin(index);
  for (int step = 1; step < size_; ++step) {
    const int owner = (rank_ + step) % size_;
    if (owner >= round.owners) continue;
    group_.await(Flag::reduced, owner, round.done(index));
    const Part part = round.part(index, owner);
    copy_between(to + part.begin, slot + part.begin, part.count * sizeof(T));
  }
}

// All rounds, the first of which is staged already.
template <class T>
void SharedAllreduce::staged(const Round<T>& round) {
  const std::size_t count = round.count();
  for (std::size_t i = 1; i < count + 2; ++i) {
    if (i >= 2) take(round, i - 2);
    if (i < count) stage(round, i);
    if (i - 1 < count) reduce_own(round, i - 1);
  }
}

// ---- which way -------------------------------------------------------------------------------

template <class T>
void SharedAllreduce::choose(const T* in, T* out, std::size_t n, Op op) {
  const std::size_t bytes = n * sizeof(T);
  const std::uint64_t asked = fingerprint(static_cast<Request>(op), dtype_of<T>(), n);
  if (bytes <= flat_bytes_) {
    group_.publish(asked, BufferPlaces{}, in, bytes);
    group_.compare(asked, BufferPlaces{});
    return flat(in, out, n, op);
  }
  const BufferPlaces here = group_.places(in, out, bytes);
  group_.publish(asked, here, nullptr, 0);
  const Round<T> round = rounds(in, out, n, op, size_);
  const bool in_segments = here.in != 0 && here.out != 0;
  if (!in_segments) stage(round, 0);  // while the records of the others arrive
  // What the ranks do next depends on the records alone, which all of them see alike.
  const bool same_place = group_.compare(asked, here);
  if (in_segments && same_place) return direct<T>(here, n, op);
  if (in_segments) stage(round, 0);
  staged(round);
}

void SharedAllreduce::run(const void* in, void* out, std::size_t n, Dtype dtype, Op op) {
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    choose(static_cast<const T*>(in), static_cast<T*>(out), n, op);
  });
}

template <class T>
void SharedAllreduce::run_between(const T* in, T* out, std::size_t n, Op op, int owners,
                                  const std::function<void(T*, std::size_t)>& between) {
  const std::uint64_t asked = fingerprint(static_cast<Request>(op), dtype_of<T>(), n);
  group_.publish(asked, BufferPlaces{}, nullptr, 0);
  group_.compare(asked, BufferPlaces{});
  if (n == 0) return;
  Round<T> round = rounds(in, out, n, op, owners);
  round.between = &between;
  // The nodes may have different numbers of ranks, but all have the same rounds.
  round.length = std::clamp(n * sizeof(T) / 4, kLeastPart, SharedGroup::kScratch / 2) / kLine *
                 (kLine / sizeof(T));
  stage(round, 0);
  staged(round);
}

#define PAROPT_INSTANTIATE(T)                                                    \
  template void SharedAllreduce::run_between(const T*, T*, std::size_t, Op, int, \
                                             const std::function<void(T*, std::size_t)>&)
PAROPT_INSTANTIATE(float);
PAROPT_INSTANTIATE(double);
PAROPT_INSTANTIATE(std::int32_t);
PAROPT_INSTANTIATE(std::int64_t);

}  // namespace paropt
