// The contract and the three ways (flat, direct, staged) are in shared_allreduce.hpp.
#include "shared_allreduce.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace paropt {
namespace {

constexpr std::size_t kLine = 64;
// A place is a segment's number, from 1 on, above the offset into it.
constexpr int kOffsetBits = 48;
// Of a part, if the vector is long enough: both slots of two ranks then stay in the L2 cache.
constexpr std::size_t kLeastPart = 32 * 1024;
constexpr std::size_t kMostPart = 128 * 1024;
// Bytes that are reduced flat where each rank has a core of its own; where it has none: kFlat.
constexpr std::size_t kFlatOwnCore = 16 * 1024;
constexpr std::size_t kInline = 32;

// What a rank is about to reduce: everything the ranks must agree on, in one word.
std::uint64_t fingerprint(Op op, Dtype dtype, std::size_t n) {
  return static_cast<std::uint64_t>(n) << 8 | static_cast<std::uint64_t>(dtype) << 4 |
         static_cast<std::uint64_t>(op);
}

std::string described(std::uint64_t fingerprint) {
  constexpr const char* kOps[] = {"sum", "mean", "min", "max"};
  constexpr const char* kDtypes[] = {"float32", "float64", "float16", "bfloat16", "int32", "int64"};
  return std::string(kOps[fingerprint & 3]) + " of " + std::to_string(fingerprint >> 8) + " " +
         kDtypes[(fingerprint >> 4 & 15) % 6];
}

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

// The cores that any rank of the node may use; 0 where that is not known. Collective.
int usable_cores(MPI_Comm node) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
  MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof cores, MPI_BYTE, MPI_BOR, node));
  return CPU_COUNT(&cores);
}

}  // namespace

// Flags of different writers, and of one writer for different waits, are on lines of their own.
struct SharedControl {
  // The record of call c lies at c % 2. The other ranks have read it when they publish call c+1,
  // which the writer awaits before it publishes c+2.
  struct alignas(kLine) Record {
    std::atomic<std::uint64_t> call;
    std::uint64_t fingerprint;
    std::uint64_t in;
    std::uint64_t out;
    char payload[kInline];
  };
  struct alignas(kLine) Counter {
    std::atomic<std::uint64_t> value;
  };
  Record records[2];
  Counter staged;   // the round whose parts are in the slot, see Round::done()
  Counter reduced;  // the round whose own part is back in the slots of the others
  Counter direct;   // the call of the direct way that this rank has done its part of
  struct alignas(kLine) Board {
    std::atomic<std::uint64_t> entered;
    std::atomic<std::uint64_t> left;
    std::atomic<std::uint32_t> operation;
  } board;
};
static_assert(sizeof(SharedControl::Record) == kLine);

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

SharedGroup::SharedGroup(MPI_Comm node, std::vector<int> ranks, std::vector<std::string> operations)
    : node_(node), ranks_(std::move(ranks)), operations_(std::move(operations)) {
  MPI_CHECK(MPI_Comm_rank(node, &rank_));
  MPI_CHECK(MPI_Comm_size(node, &size_));
  inputs_.resize(static_cast<std::size_t>(size_));
  outputs_.resize(static_cast<std::size_t>(size_));
  own_core_ = usable_cores(node) >= size_;
  waiting.spins = own_core_ ? kSpins : kSpinsSharedCores;
  flat_bytes_ = own_core_ ? kFlatOwnCore : kFlat;
  round_bytes_ = own_core_ ? kRound : kRoundSharedCores;
  controls_ = std::make_unique<SharedSegment>(node, sizeof(SharedControl), true);
  slots_ = std::make_unique<SharedSegment>(node, 2 * (kFlat + round_bytes_), false);
}

SharedGroup::~SharedGroup() = default;

void SharedGroup::free(bool buffers) {
  broken_ = true;
  for (const auto& buffer : buffers_) {
    if (buffers) buffer->free();
  }
  slots_->free();
  controls_->free();
}

std::size_t SharedGroup::memory() const { return controls_->bytes() + slots_->bytes(); }

void* SharedGroup::allocate(std::size_t bytes) {
  buffers_.push_back(std::make_unique<SharedSegment>(node_, bytes, true));
  return buffers_.back()->base(rank_);
}

SharedControl& SharedGroup::control(int rank) const {
  return *reinterpret_cast<SharedControl*>(controls_->base(rank));
}

char* SharedGroup::flat_slot(int rank, std::uint64_t call) const {
  return slots_->base(rank) + call % 2 * kFlat;
}

std::uint64_t SharedGroup::place(const void* data, std::size_t bytes) const {
  const char* const begin = static_cast<const char*>(data);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const char* const base = buffers_[i]->base(rank_);
    if (begin >= base && begin + bytes <= base + buffers_[i]->bytes()) {
      return static_cast<std::uint64_t>(i + 1) << kOffsetBits |
             static_cast<std::uint64_t>(begin - base);
    }
  }
  return 0;
}

SharedGroup::Places SharedGroup::places(const void* in, const void* out, std::size_t bytes) const {
  const std::uint64_t from = place(in, bytes);
  return {from, in == out ? from : place(out, bytes)};
}

char* SharedGroup::at(std::uint64_t place, int rank) const {
  const std::uint64_t offset = place & ((std::uint64_t{1} << kOffsetBits) - 1);
  return buffers_[(place >> kOffsetBits) - 1]->base(rank) + offset;
}

void SharedGroup::publish(std::uint64_t fingerprint, Places places, const void* payload,
                          std::size_t bytes) {
  if (broken_) {
    throw std::runtime_error("the communicator failed before or is freed; make a new one");
  }
  ++calls_;
  SharedControl::Record& record = control(rank_).records[calls_ % 2];
  record.fingerprint = fingerprint;
  record.in = places.in;
  record.out = places.out;
  if (bytes <= kInline) {
    std::memcpy(record.payload, payload, bytes);
  } else {
    std::memcpy(flat_slot(rank_, calls_), payload, bytes);
  }
  record.call.store(calls_, std::memory_order_release);
}

// Wait for the records of this call; true if all buffers are at the same place.
bool SharedGroup::compare(std::uint64_t fingerprint, Places places) {
  bool same_call = true;
  bool same_place = true;
  for (int other = 0; other < size_; ++other) {
    const SharedControl::Record& record = control(other).records[calls_ % 2];
    wait_until(
        waiting, [&] { return record.call.load(std::memory_order_acquire) == calls_; },
        [&] { return late(); });
    same_call = same_call && record.fingerprint == fingerprint;
    same_place = same_place && Places{record.in, record.out} == places;
  }
  if (!same_call) disagree();
  return same_place;
}

void SharedGroup::disagree() const {
  std::string text = "the ranks disagree in an all-reduce:";
  for (int other = 0; other < size_; ++other) {
    text += (other == 0 ? " rank " : ", rank ") + std::to_string(ranks_[other]) + " passed " +
            described(control(other).records[calls_ % 2].fingerprint);
  }
  throw Mismatch(text + "; all ranks must pass the same size, dtype and op");
}

template <class Counter>
void SharedGroup::await(Counter counter, int other, std::uint64_t value) {
  const auto& flag = (control(other).*counter).value;
  wait_until(
      waiting, [&] { return flag.load(std::memory_order_acquire) >= value; },
      [&] { return late(); });
}

template <class Counter>
void SharedGroup::await_all(Counter counter, std::uint64_t value) {
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) await(counter, other, value);
  }
}

std::string SharedGroup::late() const {
  const_cast<SharedGroup*>(this)->broken_ = true;
  return missing();
}

void SharedGroup::enter(int operation) {
  SharedControl::Board& board = control(rank_).board;
  board.operation.store(static_cast<std::uint32_t>(operation), std::memory_order_relaxed);
  board.entered.store(++entered_, std::memory_order_release);
}

void SharedGroup::leave() { control(rank_).board.left.store(entered_, std::memory_order_release); }

std::string SharedGroup::missing() const {
  std::string text;
  for (int other = 0; other < size_; ++other) {
    const SharedControl::Board& board = control(other).board;
    const std::uint64_t entered = board.entered.load(std::memory_order_acquire);
    const std::string& name = operations_[board.operation.load() % operations_.size()];
    const bool inside = board.left.load() < entered;
    const bool here = entered == entered_ && inside &&
                      board.operation.load() == control(rank_).board.operation.load();
    if (other == rank_ || here) continue;
    text += (text.empty() ? "" : ", ") + ("rank " + std::to_string(ranks_[other])) + " (last seen ";
    if (entered == 0) {
      text += "before its first call)";
    } else {
      text +=
          std::string(inside ? "in " : "after ") + name + ", call " + std::to_string(entered) + ")";
    }
  }
  return text;
}

// ---- flat ------------------------------------------------------------------------------------

template <class T>
void SharedGroup::flat(const T* in, T* out, std::size_t n, Op op) {
  const bool in_record = n * sizeof(T) <= kInline;
  for (int other = 0; other < size_; ++other) {
    inputs_[other] =
        in_record ? control(other).records[calls_ % 2].payload : flat_slot(other, calls_);
  }
  inputs_[rank_] = in;
  outputs_[0] = out;
  reduce<T>(op, inputs_.data(), size_, outputs_.data(), 1, n, op == Op::mean ? size_ : 1);
}

// ---- direct ----------------------------------------------------------------------------------

// Elements [0, n) in `parts` of about equal length, cut between cache lines.
template <class T>
static std::size_t part_begin(std::size_t n, int parts, int part) {
  constexpr std::size_t kPerLine = kLine / sizeof(T);
  const std::size_t lines = (n + kPerLine - 1) / kPerLine;
  const std::size_t line = lines * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
  return std::min(n, line * kPerLine);
}

template <class T>
void SharedGroup::direct(Places places, std::size_t n, Op op) {
  // Two parts for each rank, the later one first: what the ranks have written last is in their
  // caches still, for half of a vector as long as a cache.
  for (const int part : {size_ + rank_, rank_}) {
    const std::size_t begin = part_begin<T>(n, 2 * size_, part);
    const std::size_t count = part_begin<T>(n, 2 * size_, part + 1) - begin;
    for (int other = 0; other < size_; ++other) {
      inputs_[other] = reinterpret_cast<T*>(at(places.in, other)) + begin;
      // The own output first: the others then do not all begin with the same rank's memory.
      outputs_[other] = reinterpret_cast<T*>(at(places.out, (rank_ + other) % size_)) + begin;
    }
    reduce<T>(op, inputs_.data(), size_, outputs_.data(), size_, count, op == Op::mean ? size_ : 1);
  }
  control(rank_).direct.value.store(calls_, std::memory_order_release);
  await_all(&SharedControl::direct, calls_);
}

// ---- staged ----------------------------------------------------------------------------------

// One call's rounds. Round i is about [i * length, (i+1) * length) of the buffer; its parts are cut
// as in part_begin, and part p lies at the same offset in every slot.
template <class T>
struct SharedGroup::Round {
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
  std::size_t slot(std::size_t index) const { return 2 * kFlat + index % 2 * slot_bytes; }
  // What the counters say when round `index` is done: more than in any call before, also one that
  // ended with a mismatch.
  std::uint64_t done(std::size_t index) const { return (call << 32) + index + 1; }
};

template <class T>
SharedGroup::Round<T> SharedGroup::rounds(const T* in, T* out, std::size_t n, Op op,
                                          int owners) const {
  const std::size_t ranks = static_cast<std::size_t>(size_);
  const std::size_t part = std::clamp(n * sizeof(T) / (4 * ranks), kLeastPart, kMostPart);
  const std::size_t bytes = own_core_ ? std::min(part * ranks, kRound) : round_bytes_;
  const std::size_t length = bytes / kLine * (kLine / sizeof(T));
  return {in, out, n, op, owners, nullptr, length, round_bytes_, calls_};
}

// The slot is free: what the others put into it two rounds before has been taken.
template <class T>
void SharedGroup::stage(const Round<T>& round, std::size_t index) {
  T* const slot = reinterpret_cast<T*>(slots_->base(rank_) + round.slot(index));
  const T* const from = round.in + round.begin(index);
  for (int owner = 0; owner < round.owners; ++owner) {
    const Part part = round.part(index, owner);
    if (owner == rank_) continue;
    copy_between(slot + part.begin, from + part.begin, part.count * sizeof(T));
  }
  control(rank_).staged.value.store(round.done(index), std::memory_order_release);
}

template <class T>
void SharedGroup::reduce_own(const Round<T>& round, std::size_t index) {
  const std::uint64_t done = round.done(index);
  if (rank_ < round.owners) {
    await_all(&SharedControl::staged, done);
    const Part part = round.part(index, rank_);
    T* const own = round.out + round.begin(index) + part.begin;
    for (int other = 0; other < size_; ++other) {
      T* const slot = reinterpret_cast<T*>(slots_->base(other) + round.slot(index));
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
  control(rank_).reduced.value.store(done, std::memory_order_release);
}

template <class T>
void SharedGroup::take(const Round<T>& round, std::size_t index) {
  const T* const slot = reinterpret_cast<const T*>(slots_->base(rank_) + round.slot(index));
  T* const to = round.out + round.begin(index);
  for (int step = 1; step < size_; ++step) {
    const int owner = (rank_ + step) % size_;
    if (owner >= round.owners) continue;
    await(&SharedControl::reduced, owner, round.done(index));
    const Part part = round.part(index, owner);
    copy_between(to + part.begin, slot + part.begin, part.count * sizeof(T));
  }
}

// All rounds, the first of which is staged already.
template <class T>
void SharedGroup::staged(const Round<T>& round) {
  const std::size_t count = round.count();
  for (std::size_t i = 1; i < count + 2; ++i) {
    if (i >= 2) take(round, i - 2);
    if (i < count) stage(round, i);
    if (i - 1 < count) reduce_own(round, i - 1);
  }
}

// ---- which way -------------------------------------------------------------------------------

template <class T>
void SharedGroup::run(const T* in, T* out, std::size_t n, Op op) {
  const std::size_t bytes = n * sizeof(T);
  const std::uint64_t asked = fingerprint(op, dtype_of<T>(), n);
  if (bytes <= flat_bytes_) {
    publish(asked, Places{}, in, bytes);
    compare(asked, Places{});
    return flat(in, out, n, op);
  }
  const Places here = places(in, out, bytes);
  publish(asked, here, in, 0);
  const Round<T> round = rounds(in, out, n, op, size_);
  const bool in_segments = here.in != 0 && here.out != 0;
  if (!in_segments) stage(round, 0);  // while the records of the others arrive
  // What the ranks do next depends on the records alone, which all of them see alike.
  const bool same_place = compare(asked, here);
  if (in_segments && same_place) return direct<T>(here, n, op);
  if (in_segments) stage(round, 0);
  staged(round);
}

void SharedGroup::allreduce(const void* in, void* out, std::size_t n, Dtype dtype, Op op) {
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    run(static_cast<const T*>(in), static_cast<T*>(out), n, op);
  });
}

template <class T>
void SharedGroup::allreduce_between(const T* in, T* out, std::size_t n, Op op, int owners,
                                    const std::function<void(T*, std::size_t)>& between) {
  const std::uint64_t asked = fingerprint(op, dtype_of<T>(), n);
  publish(asked, Places{}, in, 0);
  compare(asked, Places{});
  if (n == 0) return;
  Round<T> round = rounds(in, out, n, op, owners);
  round.between = &between;
  // The nodes may have different numbers of ranks, but all have the same rounds.
  round.length = std::clamp(n * sizeof(T) / 4, kLeastPart, kRound) / kLine * (kLine / sizeof(T));
  stage(round, 0);
  staged(round);
}

#define PAROPT_INSTANTIATE(T)                                                      \
  template void SharedGroup::allreduce_between(const T*, T*, std::size_t, Op, int, \
                                               const std::function<void(T*, std::size_t)>&)
PAROPT_INSTANTIATE(float);
PAROPT_INSTANTIATE(double);
PAROPT_INSTANTIATE(std::int32_t);
PAROPT_INSTANTIATE(std::int64_t);

}  // namespace paropt
