// All-reduce among the ranks of one node, through memory that all of them see. No message is sent.
//
// Every call begins alike: each rank publishes a record (what it was asked to reduce, and where its
// buffer is if that lives in a shared segment), waits for the records of the others and compares
// them, so ranks that disagree all throw. Then one of three ways, by size and place:
//
//   flat    Short vectors. The values travel with the record and every rank reduces all of them:
//           one wait per call.
//   direct  Buffers from allocate(), at the same place on every rank. Rank r reduces part r of all
//           inputs straight into all outputs; nothing is copied.
//   staged  All others, in rounds of at most so many bytes. In a round every rank
//             stages   copies the parts it does not own into its slot,
//             reduces  its own part from everybody's slots, and puts the result back into them,
//             takes    the other parts out of its slot again.
//           Slots are doubled. Rounds overlap: while round i is staged, round i-1 is reduced and
//           round i-2 taken, so that a rank waits only for what the others did a round earlier.
//
// All ways fold the ranks in their order and copy the result from there (or compute it alike), so
// that all ranks end with the same bits, the same in every run.
//
// What costs here is a cache line that has to cross between two cores. In the staged way it does so
// twice: to the owner of the part, and with the result back to the rank that stages into it again
// in the next round but one, which by then has it for writing. So no rank waits until it may write,
// and the slots stay in the caches.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fold.hpp"
#include "shared_segment.hpp"
#include "waiting.hpp"

namespace paropt {

struct SharedControl;

// The calls that the bindings' short way has made.
struct SharedTraffic {
  std::uint64_t calls = 0;
  std::uint64_t sent = 0;  // bytes, of the bandwidth-optimal algorithm
  std::uint64_t received = 0;
  double seconds = 0;
  double waited = 0;

  void count(std::size_t n, std::size_t item_bytes, int rank, int size, double took,
             double waiting);
};

class SharedGroup {
 public:
  static constexpr std::size_t kRound = 512 * 1024;
  // Where ranks share cores, each round waits until all of them have had their turn.
  static constexpr std::size_t kRoundSharedCores = 3 * kRound;
  static constexpr std::size_t kFlat = 256 * 1024;

  // Collective over `node`, whose ranks share memory. `ranks` are the numbers by which error texts
  // call them, `operations` the names that enter() refers to. All memory is taken here: a later
  // call that had to allocate some, which is collective, could not be cancelled.
  SharedGroup(MPI_Comm node, std::vector<int> ranks, std::vector<std::string> operations);

  // Local; frees nothing, see SharedSegment.
  ~SharedGroup();

  // Collective: give the memory back; that of allocate() only where `buffers` says that no rank
  // still has an array in it. Otherwise it stays until the process ends.
  void free(bool buffers);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Collective: a new segment of `bytes` for every rank; returns this rank's. It lives until
  // free().
  void* allocate(std::size_t bytes);

  // Collective: reduce in[0..n) of all ranks into out[0..n) of every rank. `in` and `out` are the
  // same or do not overlap; aligned for their type. n, dtype and op the same on all ranks, else
  // Mismatch is thrown on all of them before anything is written. Throws TimedOut on the deadline;
  // the group cannot be used any more then.
  void allreduce(const void* in, void* out, std::size_t n, Dtype dtype, Op op);

  // As allreduce, but in between: each of the first `owners` ranks has its part of a round, folded
  // over this node, passed to between(part, count), which may change it, before all ranks take it.
  // `op` is sum, min or max. T is float, double, int32_t or int64_t. Rounds and parts depend on n,
  // T and `owners` alone, so ranks of other nodes with the same place see the same calls.
  template <class T>
  void allreduce_between(const T* in, T* out, std::size_t n, Op op, int owners,
                         const std::function<void(T*, std::size_t)>& between);

  // Say on the node's board that this rank goes into, or comes out of, an operation.
  void enter(int operation);
  void leave();

  // Which ranks have not arrived where this one waits, and where they were last seen.
  std::string missing() const;

  // Bytes of segments that this rank has taken, without those of allocate().
  std::size_t memory() const;

  // Bytes of the longest vector that is reduced flat, the same on all ranks. Every rank reads all
  // vectors then. That is more work than the staged way has, whose two waits more cost little as
  // long as every rank has a core.
  std::size_t flat_bytes() const { return flat_bytes_; }

  Waiting waiting;
  SharedTraffic traffic;

 private:
  struct Places {
    std::uint64_t in = 0;  // 0: not in a segment
    std::uint64_t out = 0;
    bool operator==(const Places& o) const { return in == o.in && out == o.out; }
  };
  struct Part {
    std::size_t begin;
    std::size_t count;
  };
  template <class T>
  struct Round;

  SharedControl& control(int rank) const;
  char* flat_slot(int rank, std::uint64_t call) const;
  Places places(const void* in, const void* out, std::size_t bytes) const;
  std::uint64_t place(const void* data, std::size_t bytes) const;
  char* at(std::uint64_t place, int rank) const;
  void publish(std::uint64_t fingerprint, Places places, const void* payload, std::size_t bytes);
  bool compare(std::uint64_t fingerprint, Places places);
  template <class Counter>
  void await(Counter counter, int other, std::uint64_t value);
  template <class Counter>
  void await_all(Counter counter, std::uint64_t value);
  [[noreturn]] void disagree() const;
  std::string late() const;

  template <class T>
  void run(const T* in, T* out, std::size_t n, Op op);
  template <class T>
  void flat(const T* in, T* out, std::size_t n, Op op);
  template <class T>
  void direct(Places places, std::size_t n, Op op);
  template <class T>
  Round<T> rounds(const T* in, T* out, std::size_t n, Op op, int owners) const;
  template <class T>
  void staged(const Round<T>& round);
  template <class T>
  void stage(const Round<T>& round, std::size_t index);
  template <class T>
  void reduce_own(const Round<T>& round, std::size_t index);
  template <class T>
  void take(const Round<T>& round, std::size_t index);

  MPI_Comm node_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> ranks_;
  std::vector<std::string> operations_;
  std::unique_ptr<SharedSegment> controls_;
  std::unique_ptr<SharedSegment> slots_;
  std::vector<std::unique_ptr<SharedSegment>> buffers_;
  bool own_core_ = true;  // has every rank one?
  std::size_t flat_bytes_ = 0;
  std::size_t round_bytes_ = kRound;
  std::vector<const void*> inputs_;  // of one reduction, by rank
  std::vector<void*> outputs_;
  std::uint64_t calls_ = 0;
  std::uint64_t entered_ = 0;
  bool broken_ = false;
};

}  // namespace paropt
