// All-reduce among the ranks of one node, through memory that all of them see. No message is sent.
//
// Once the ranks agree on what is asked (see shared_group.hpp) there are three ways, by size and
// place:
//
//   flat    Short vectors. The values travel with the record and every rank reduces all of them:
//           one wait per call.
//   direct  Buffers from allocate(), at the same place on every rank. Each rank reduces its share
//           of all inputs straight into all outputs; nothing is copied.
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

#include <cstdint>
#include <functional>
#include <vector>

#include "fold.hpp"
#include "shared_group.hpp"

namespace paropt {

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

class SharedAllreduce {
 public:
  // Local; the group must outlive it.
  explicit SharedAllreduce(SharedGroup& group);

  // Collective: reduce in[0..n) of all ranks into out[0..n) of every rank. `in` and `out` are the
  // same or do not overlap; aligned for their type. n, dtype and op the same on all ranks, else
  // Mismatch is thrown on all of them before anything is written. Throws TimedOut on the deadline;
  // the group cannot be used any more then.
  void run(const void* in, void* out, std::size_t n, Dtype dtype, Op op);

  // As run, but in between: each of the first `owners` ranks has its part of a round, folded over
  // this node, passed to between(part, count), which may change it, before all ranks take it. `op`
  // is sum, min or max. Rounds and parts depend on n, T and `owners` alone, so ranks of other nodes
  // with the same place see the same calls.
  template <class T>
  void run_between(const T* in, T* out, std::size_t n, Op op, int owners,
                   const std::function<void(T*, std::size_t)>& between);

  // Bytes of the longest vector that is reduced flat, the same on all ranks. Every rank reads all
  // vectors then. That is more work than the staged way has, whose two waits more cost little as
  // long as every rank has a core.
  std::size_t flat_bytes() const { return flat_bytes_; }

  SharedTraffic traffic;

 private:
  struct Part {
    std::size_t begin;
    std::size_t count;
  };
  template <class T>
  struct Round;

  template <class T>
  void choose(const T* in, T* out, std::size_t n, Op op);
  template <class T>
  void flat(const T* in, T* out, std::size_t n, Op op);
  template <class T>
  void direct(BufferPlaces places, std::size_t n, Op op);
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

  SharedGroup& group_;
  int rank_;
  int size_;
  std::size_t flat_bytes_;
  std::vector<const void*> inputs_;  // of one reduction, by rank
  std::vector<void*> outputs_;
};

}  // namespace paropt
