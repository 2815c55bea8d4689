// The contract is in shared_group.hpp.
#include "shared_group.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace paropt {
namespace {

constexpr std::size_t kLine = 64;
// A place is a segment's number, from 1 on, above the offset into it.
constexpr int kOffsetBits = 48;
constexpr std::size_t kInline = 32;
constexpr std::size_t kLeastShared = 64 * 1024;

std::string described(std::uint64_t asked) {
  constexpr const char* kRequests[] = {"sum", "mean", "min", "max", "gather", "share"};
  constexpr const char* kDtypes[] = {"float32", "float64", "float16", "bfloat16", "int32", "int64"};
  const auto request = static_cast<Request>(asked & 15);
  const std::string n = std::to_string(asked >> 8);
  if (request == Request::share) return "messages to be shared";
  if (request == Request::gather) return n + " bytes to be gathered";
  return std::string(kRequests[asked & 3]) + " of " + n + " " + kDtypes[(asked >> 4 & 15) % 6];
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

// What different ranks write, and what one writes for different waits, is on lines of its own.
struct SharedControl {
  // The record of call c lies at c % 2. The other ranks have read it when they publish call c+1,
  // which the writer awaits before it publishes c+2.
  struct alignas(kLine) Record {
    std::atomic<std::uint64_t> call;
    std::uint64_t asked;
    BufferPlaces places;
    char payload[kInline];
  };
  struct alignas(kLine) Counter {
    std::atomic<std::uint64_t> value;
  };
  Record records[2];
  Counter flags[kFlags];
  struct alignas(kLine) Board {
    std::atomic<std::uint64_t> entered;
    std::atomic<std::uint64_t> left;
    std::atomic<std::uint32_t> operation;
  } board;
};
static_assert(sizeof(SharedControl::Record) == kLine);

SharedGroup::SharedGroup(MPI_Comm node, std::vector<int> ranks, std::vector<std::string> operations)
    : node_(node), ranks_(std::move(ranks)), operations_(std::move(operations)) {
  MPI_CHECK(MPI_Comm_rank(node, &rank_));
  MPI_CHECK(MPI_Comm_size(node, &size_));
  own_core_ = usable_cores(node) >= size_;
  waiting.spins = own_core_ ? kSpins : kSpinsSharedCores;
  controls_ = std::make_unique<SharedSegment>(node, sizeof(SharedControl), true);
  slots_ = std::make_unique<SharedSegment>(node, 2 * kCarried + scratch_bytes(), false);
}

SharedGroup::~SharedGroup() = default;

void SharedGroup::free(bool buffers) {
  broken_ = true;
  for (const auto& buffer : buffers_) {
    if (buffers) buffer->free();
  }
  if (shared_) shared_->free();
  slots_->free();
  controls_->free();
}

std::size_t SharedGroup::memory() const {
  return controls_->bytes() + slots_->bytes() + (shared_ ? shared_->bytes() : 0);
}

void* SharedGroup::allocate(std::size_t bytes) {
  buffers_.push_back(std::make_unique<SharedSegment>(node_, bytes, true));
  return buffers_.back()->base(rank_);
}

SharedControl& SharedGroup::control(int rank) const {
  return *reinterpret_cast<SharedControl*>(controls_->base(rank));
}

// ---- places ----------------------------------------------------------------------------------

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

BufferPlaces SharedGroup::places(const void* in, const void* out, std::size_t bytes) const {
  const std::uint64_t from = place(in, bytes);
  return {from, in == out ? from : place(out, bytes)};
}

char* SharedGroup::at(std::uint64_t place, int rank) const {
  const std::uint64_t offset = place & ((std::uint64_t{1} << kOffsetBits) - 1);
  return buffers_[(place >> kOffsetBits) - 1]->base(rank) + offset;
}

// ---- records and flags -----------------------------------------------------------------------

void SharedGroup::publish(std::uint64_t asked, BufferPlaces places, const void* payload,
                          std::size_t bytes) {
  if (broken_) {
    throw std::runtime_error("the communicator failed before or is freed; make a new one");
  }
  ++calls_;
  SharedControl::Record& record = control(rank_).records[calls_ % 2];
  record.asked = asked;
  record.places = places;
  if (bytes > 0) std::memcpy(const_cast<char*>(this->payload(rank_, bytes)), payload, bytes);
  record.call.store(calls_, std::memory_order_release);
}

bool SharedGroup::compare(std::uint64_t asked, BufferPlaces places) {
  bool same_call = true;
  bool same_place = true;
  for (int other = 0; other < size_; ++other) {
    const SharedControl::Record& record = control(other).records[calls_ % 2];
    wait_until(
        waiting, [&] { return record.call.load(std::memory_order_acquire) == calls_; },
        [&] { return late(); });
    same_call = same_call && record.asked == asked;
    same_place = same_place && record.places == places;
  }
  if (!same_call) disagree();
  return same_place;
}

BufferPlaces SharedGroup::places_of(int rank) const {
  return control(rank).records[calls_ % 2].places;
}

const char* SharedGroup::payload(int rank, std::size_t bytes) const {
  if (bytes <= kInline) return control(rank).records[calls_ % 2].payload;
  return slots_->base(rank) + calls_ % 2 * kCarried;
}

void SharedGroup::disagree() const {
  std::string text = "the ranks disagree:";
  for (int other = 0; other < size_; ++other) {
    text += (other == 0 ? " rank " : ", rank ") + std::to_string(ranks_[other]) + " passed " +
            described(control(other).records[calls_ % 2].asked);
  }
  throw Mismatch(text + "; all ranks must pass the same size, dtype and op");
}

void SharedGroup::signal(Flag flag, std::uint64_t value) {
  control(rank_).flags[static_cast<int>(flag)].value.store(value, std::memory_order_release);
}

void SharedGroup::await(Flag flag, int other, std::uint64_t value) {
  const auto& raised = control(other).flags[static_cast<int>(flag)].value;
  wait_until(
      waiting, [&] { return raised.load(std::memory_order_acquire) >= value; },
      [&] { return late(); });
}

void SharedGroup::await_all(Flag flag, std::uint64_t value) {
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) await(flag, other, value);
  }
}

// ---- gather and share ------------------------------------------------------------------------

void SharedGroup::gather(const void* own, std::size_t bytes, void* out) {
  const std::uint64_t asked = fingerprint(Request::gather, Dtype::float32, bytes);
  publish(asked, BufferPlaces{}, own, bytes);
  compare(asked, BufferPlaces{});
  for (int other = 0; other < size_; ++other) {
    char* const to = static_cast<char*>(out) + static_cast<std::size_t>(other) * bytes;
    if (bytes > 0) std::memcpy(to, payload(other, bytes), bytes);
  }
}

std::vector<Shared> SharedGroup::share(const void* own, std::size_t bytes) {
  const std::uint64_t asked = fingerprint(Request::share, Dtype::float32, 0);
  publish(asked, BufferPlaces{bytes, 0}, nullptr, 0);
  compare(asked, BufferPlaces{});
  // All are here, so nobody reads any more what the last call has returned.
  std::size_t most = 0;
  for (int other = 0; other < size_; ++other) most = std::max(most, places_of(other).in);
  if (!shared_ || shared_->bytes() < most) {
    const std::size_t before = shared_ ? shared_->bytes() : kLeastShared;
    if (shared_) shared_->free();
    shared_ = std::make_unique<SharedSegment>(node_, std::max(most, before + before / 2), false);
  }
  if (bytes > 0) copy_between(shared_->base(rank_), own, bytes);
  signal(Flag::shared, calls_);
  await_all(Flag::shared, calls_);
  std::vector<Shared> found;
  for (int other = 0; other < size_; ++other) {
    found.push_back({shared_->base(other), places_of(other).in});
  }
  return found;
}

// ---- the board -------------------------------------------------------------------------------

std::string SharedGroup::late() const {
  const_cast<SharedGroup*>(this)->broken_ = true;
  return missing();
}

void SharedGroup::enter(int operation) {
  if (broken_) return;  // those that still wait see this rank where it gave up
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
    const bool ahead = entered > entered_;  // it has been here
    if (other == rank_ || here || ahead) continue;
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

}  // namespace paropt
