// The contract and the three ways (flat, direct, staged) are in shared_allreduce.hpp.
#include "shared_allreduce.hpp"

#include <algorithm>
#include <cstring>

namespace paropt {
namespace {

constexpr std::size_t kLine = 64;
// A place is a segment's number, from 1 on, above the offset into it.
constexpr int kOffsetBits = 48;
// Below this, a buffer that was just read is still in the cache, and stays there if written
// plainly.
constexpr std::size_t kStreamBytes = 4 * 1024 * 1024;
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
Dtype dtype_of<Half>() {
  return Dtype::float16;
}
template <>
Dtype dtype_of<Bfloat16>() {
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
  Counter staged;   // rounds whose parts are in the slot
  Counter reduced;  // rounds whose own part is in the result slot
  Counter taken;    // rounds whose other parts have been copied from there
  Counter direct;   // calls of the direct way that this rank has done its part of
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
  waiting.spins = spins_for(size_);
  controls_ = std::make_unique<SharedSegment>(node, sizeof(SharedControl) + 2 * kFlat);
}

SharedGroup::~SharedGroup() = default;

void SharedGroup::free(bool buffers) {
  broken_ = true;
  for (const auto& buffer : buffers_) {
    if (buffers) buffer->free();
  }
  if (slots_) slots_->free();
  controls_->free();
}

std::size_t SharedGroup::memory() const {
  return controls_->bytes() + (slots_ ? slots_->bytes() : 0);
}

void* SharedGroup::allocate(std::size_t bytes) {
  buffers_.push_back(std::make_unique<SharedSegment>(node_, bytes));
  return buffers_.back()->base(rank_);
}

void SharedGroup::prepare_slots() {
  if (!slots_) slots_ = std::make_unique<SharedSegment>(node_, 4 * kRound);
}

SharedControl& SharedGroup::control(int rank) const {
  return *reinterpret_cast<SharedControl*>(controls_->base(rank));
}

char* SharedGroup::flat_slot(int rank, std::uint64_t call) const {
  return controls_->base(rank) + sizeof(SharedControl) + call % 2 * kFlat;
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
void SharedGroup::await(Counter counter, std::uint64_t value) {
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    const auto& flag = (control(other).*counter).value;
    wait_until(
        waiting, [&] { return flag.load(std::memory_order_acquire) >= value; },
        [&] { return late(); });
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
  std::vector<const T*> inputs(static_cast<std::size_t>(size_));
  const bool in_record = n * sizeof(T) <= kInline;
  for (int other = 0; other < size_; ++other) {
    const char* const from =
        in_record ? control(other).records[calls_ % 2].payload : flat_slot(other, calls_);
    inputs[other] = other == rank_ ? in : reinterpret_cast<const T*>(from);
  }
  T* const output = out;
  reduce(op, inputs.data(), size_, &output, 1, n, op == Op::mean ? size_ : 1, false);
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
  const std::size_t begin = part_begin<T>(n, size_, rank_);
  const std::size_t count = part_begin<T>(n, size_, rank_ + 1) - begin;
  std::vector<const T*> inputs(static_cast<std::size_t>(size_));
  std::vector<T*> outputs(static_cast<std::size_t>(size_));
  for (int other = 0; other < size_; ++other) {
    inputs[other] = reinterpret_cast<const T*>(at(places.in, other)) + begin;
    // The own output first: the others then do not all begin with the same rank's memory.
    outputs[other] = reinterpret_cast<T*>(at(places.out, (rank_ + other) % size_)) + begin;
  }
  reduce(op, inputs.data(), size_, outputs.data(), size_, count, op == Op::mean ? size_ : 1, true);
  stream_fence();
  ++direct_calls_;
  control(rank_).direct.value.store(direct_calls_, std::memory_order_release);
  await(&SharedControl::direct, direct_calls_);
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
  bool stream;
  std::uint64_t first;  // number of round 0 among all rounds of this group

  std::size_t count() const { return (n + length - 1) / length; }
  std::size_t begin(std::size_t index) const { return index * length; }
  Part part(std::size_t index, int owner) const {
    const std::size_t size = std::min(length, n - begin(index));
    const std::size_t from = part_begin<T>(size, owners, owner);
    return {from, part_begin<T>(size, owners, owner + 1) - from};
  }
  std::size_t slot(std::size_t index) const { return (first + index) % 2 * kRound; }
  std::size_t result_slot(std::size_t index) const { return 2 * kRound + slot(index); }
  // What the counters say when round `index` is done.
  std::uint64_t done(std::size_t index) const { return first + index + 1; }
};

template <class T>
void SharedGroup::stage(const Round<T>& round, std::size_t index) {
  // The slot was last used two rounds before.
  const std::uint64_t done = round.done(index);
  if (done > 2) await(&SharedControl::reduced, done - 2);
  T* const slot = reinterpret_cast<T*>(slots_->base(rank_) + round.slot(index));
  const T* const from = round.in + round.begin(index);
  for (int owner = 0; owner < round.owners; ++owner) {
    const Part part = round.part(index, owner);
    if (owner == rank_) continue;
    stream_copy(slot + part.begin, from + part.begin, part.count * sizeof(T));
  }
  stream_fence();
  control(rank_).staged.value.store(done, std::memory_order_release);
}

template <class T>
void SharedGroup::reduce_own(const Round<T>& round, std::size_t index) {
  const std::uint64_t done = round.done(index);
  if (rank_ < round.owners) {
    await(&SharedControl::staged, done);
    if (done > 2) await(&SharedControl::taken, done - 2);
    const Part part = round.part(index, rank_);
    T* const own = round.out + round.begin(index) + part.begin;
    T* const result =
        reinterpret_cast<T*>(slots_->base(rank_) + round.result_slot(index)) + part.begin;
    std::vector<const T*> inputs(static_cast<std::size_t>(size_));
    for (int other = 0; other < size_; ++other) {
      const char* const slot = slots_->base(other) + round.slot(index);
      inputs[other] = reinterpret_cast<const T*>(slot) + part.begin;
    }
    inputs[rank_] = round.in + round.begin(index) + part.begin;
    T* outputs[] = {result, own};
    reduce(round.op, inputs.data(), size_, outputs, round.between == nullptr ? 2 : 1, part.count,
           round.op == Op::mean ? size_ : 1, true);
    stream_fence();
    if (round.between != nullptr) {
      (*round.between)(result, part.count);
      std::memcpy(own, result, part.count * sizeof(T));
    }
  }
  control(rank_).reduced.value.store(done, std::memory_order_release);
}

template <class T>
void SharedGroup::take(const Round<T>& round, std::size_t index) {
  const std::uint64_t done = round.done(index);
  await(&SharedControl::reduced, done);
  for (int step = 1; step < size_; ++step) {
    const int owner = (rank_ + step) % size_;
    if (owner >= round.owners) continue;
    const Part part = round.part(index, owner);
    const char* const slot = slots_->base(owner) + round.result_slot(index);
    const T* const result = reinterpret_cast<const T*>(slot) + part.begin;
    T* const to = round.out + round.begin(index) + part.begin;
    if (round.stream) {
      stream_copy(to, result, part.count * sizeof(T));
    } else {
      std::memcpy(to, result, part.count * sizeof(T));
    }
  }
  control(rank_).taken.value.store(done, std::memory_order_release);
}

template <class T>
void SharedGroup::staged(const T* in, T* out, std::size_t n, Op op, int owners,
                         const std::function<void(T*, std::size_t)>* between) {
  prepare_slots();
  // At least four rounds, so that their three stages overlap.
  const std::size_t bytes = std::clamp(n * sizeof(T) / 4, std::size_t{32768}, kRound);
  const std::size_t length = bytes / kLine * (kLine / sizeof(T));
  const bool stream = n * sizeof(T) >= kStreamBytes;
  const Round<T> round{in, out, n, op, owners, between, length, stream, rounds_};
  const std::size_t count = round.count();
  for (std::size_t i = 0; i < count + 2; ++i) {
    if (i < count) stage(round, i);
    if (i >= 1 && i - 1 < count) reduce_own(round, i - 1);
    if (i >= 2) take(round, i - 2);
  }
  stream_fence();
  rounds_ += count;
}

// ---- which way -------------------------------------------------------------------------------

template <class T>
void SharedGroup::run(const T* in, T* out, std::size_t n, Op op) {
  const std::size_t bytes = n * sizeof(T);
  const bool short_way = bytes <= flat_bytes();
  const Places here = short_way ? Places{} : places(in, out, bytes);
  const std::uint64_t asked = fingerprint(op, dtype_of<T>(), n);
  publish(asked, here, in, short_way ? bytes : 0);
  const bool same_place = compare(asked, here);
  if (short_way) {
    flat(in, out, n, op);
  } else if (same_place && here.in != 0 && here.out != 0) {
    direct<T>(here, n, op);
  } else {
    staged<T>(in, out, n, op, size_, nullptr);
  }
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
  staged(in, out, n, op, owners, &between);
}

#define PAROPT_INSTANTIATE(T)                                                      \
  template void SharedGroup::allreduce_between(const T*, T*, std::size_t, Op, int, \
                                               const std::function<void(T*, std::size_t)>&)
PAROPT_INSTANTIATE(float);
PAROPT_INSTANTIATE(double);
PAROPT_INSTANTIATE(std::int32_t);
PAROPT_INSTANTIATE(std::int64_t);

}  // namespace paropt
