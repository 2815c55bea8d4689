// What the ranks of one node have in common: memory that all of them see, and who is where.
//
// Every collective in this memory begins alike: each rank publishes a record (what it was asked to
// do, and where its buffers are if these live in shared segments), waits for the records of the
// others and compares them, so that ranks which disagree all throw. A few bytes travel with the
// record itself: to gather them takes no more than that. The all-reduces are in
// shared_allreduce.hpp.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fold.hpp"
#include "shared_segment.hpp"
#include "waiting.hpp"

namespace paropt {

struct SharedControl;

// What a rank can ask of the others; the reductions as in Op.
enum class Request { sum, mean, min, max, gather, share };

// Everything the ranks must agree on before they touch memory, in one word.
inline std::uint64_t fingerprint(Request request, Dtype dtype, std::size_t n) {
  return static_cast<std::uint64_t>(n) << 8 | static_cast<std::uint64_t>(dtype) << 4 |
         static_cast<std::uint64_t>(request);
}

// Where a rank's buffers are; 0: not in a shared segment.
struct BufferPlaces {
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  bool operator==(const BufferPlaces& o) const { return in == o.in && out == o.out; }
};

// What a rank tells the others how far it has come; each on a cache line of its own.
enum class Flag { staged, reduced, direct, shared };
constexpr int kFlags = 4;

// Bytes of a rank that the others read.
struct Shared {
  const char* data;
  std::size_t bytes;
};

class SharedGroup {
 public:
  // Bytes that a record can carry.
  static constexpr std::size_t kCarried = 256 * 1024;
  // Of scratch(). Where ranks share cores, each round of a reduction waits until all of them have
  // had their turn, so that few long rounds are better there.
  static constexpr std::size_t kScratch = 1024 * 1024;
  static constexpr std::size_t kScratchSharedCores = 5 * kScratch / 2;

  // Collective over `node`, whose ranks share memory. `ranks` are the numbers by which error texts
  // call them, `operations` the names that enter() refers to. What the reductions need is taken
  // here: a later call that had to allocate, which is collective, could not be cancelled.
  SharedGroup(MPI_Comm node, std::vector<int> ranks, std::vector<std::string> operations);

  // Local; frees nothing, see SharedSegment.
  ~SharedGroup();

  // Collective: give the memory back; that of allocate() only where `buffers` says that no rank
  // still has an array in it. Otherwise it stays until the process ends.
  void free(bool buffers);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Has every rank a core?
  bool own_core() const { return own_core_; }

  // Collective: a new segment of `bytes` for every rank; returns this rank's. It lives until
  // free().
  void* allocate(std::size_t bytes);

  // Collective: the same number of bytes of every rank, at most kCarried, one behind the other by
  // rank in `out`.
  void gather(const void* own, std::size_t bytes, void* out);

  // Collective: let all ranks see own[0..bytes), whose length may differ. What is returned, by
  // rank, can be read until this rank's next share() or free().
  std::vector<Shared> share(const void* own, std::size_t bytes);

  // Say on the node's board that this rank goes into, or comes out of, an operation.
  void enter(int operation);
  void leave();

  // Local: let no other call begin, since one that did not go through here has failed.
  void fail() { broken_ = true; }

  // Which ranks have not arrived where this one waits, and where they were last seen.
  std::string missing() const;

  // Bytes of segments that this rank has taken, without those of allocate().
  std::size_t memory() const;

  Waiting waiting;

  // ---- for collectives in this memory. Every function that waits throws TimedOut on the deadline;
  // ---- the group cannot be used any more then.

  // Begin a call: tell the others, with `bytes` of payload that the record carries.
  void publish(std::uint64_t asked, BufferPlaces places, const void* payload, std::size_t bytes);
  // Wait for the records of this call; true if all buffers are at the same place. Throws Mismatch
  // on all ranks unless all have been asked the same.
  bool compare(std::uint64_t asked, BufferPlaces places);
  // How many calls have begun, the same on all ranks.
  std::uint64_t calls() const { return calls_; }
  BufferPlaces places_of(int rank) const;
  const char* payload(int rank, std::size_t bytes) const;

  // Where these buffers of this rank are, and what lies at such a place of another one.
  BufferPlaces places(const void* in, const void* out, std::size_t bytes) const;
  char* at(std::uint64_t place, int rank) const;

  // Memory of each rank for what a call moves; nobody else's while the call lasts.
  char* scratch(int rank) const { return slots_->base(rank) + 2 * kCarried; }
  std::size_t scratch_bytes() const { return own_core_ ? kScratch : kScratchSharedCores; }

  // Raise a flag of this rank to `value`; wait until another's, or all others', have reached it.
  void signal(Flag flag, std::uint64_t value);
  void await(Flag flag, int other, std::uint64_t value);
  void await_all(Flag flag, std::uint64_t value);

 private:
  SharedControl& control(int rank) const;
  std::uint64_t place(const void* data, std::size_t bytes) const;
  [[noreturn]] void disagree() const;
  std::string late() const;

  MPI_Comm node_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> ranks_;
  std::vector<std::string> operations_;
  std::unique_ptr<SharedSegment> controls_;
  std::unique_ptr<SharedSegment> slots_;  // two for what records carry, then the scratch memory
  std::unique_ptr<SharedSegment> shared_;
  std::vector<std::unique_ptr<SharedSegment>> buffers_;
  bool own_core_ = true;
  std::uint64_t calls_ = 0;
  std::uint64_t entered_ = 0;
  bool broken_ = false;
};

}  // namespace paropt
