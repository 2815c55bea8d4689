// A lane: what one thread needs to reduce buffers over all ranks, by any of our algorithms.
//
// It has communicators and memory of its own, so that the lane of a progress thread and that of its
// caller never meet. The vectors of the 16-bit floats are widened to float32 where they would be
// rounded at every hop, kPiece elements at a time, and rounded once at the end: by recursive
// doubling and between nodes. The ring and shared memory need no such copy.
//
// hierarchical: in every round of the node's shared memory (shared_allreduce.hpp) the first
// `leaders` ranks of the node fold a part each, reduce it with the leaders of the other nodes at
// the same place, by ring or, where it is short, by recursive doubling, and then let the node take
// it.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "fold.hpp"
#include "shared_allreduce.hpp"
#include "shared_group.hpp"
#include "waiting.hpp"

namespace paropt {

enum class Algorithm { ring, recursive_doubling, shared, hierarchical };

struct LaneOptions {
  std::size_t segment_bytes = 1024 * 1024;  // of one message
  std::size_t max_count = 1;                // largest count given to MPI
  double timeout = 0;                       // seconds a wait may last; 0: for ever
  int leaders = 1;                          // ranks of a node that talk to other nodes
  std::string elsewhere;                    // the ranks of the other nodes, for error texts
  bool background = false;                  // give the core away sooner: others compute on it
};

class Lane {
 public:
  // Local. The communicators stay the caller's: all ranks, and the leaders at this rank's place
  // (MPI_COMM_NULL if it leads nothing). `group` may be null, if the node cannot share memory;
  // only ring and recursive_doubling work then.
  Lane(MPI_Comm comm, MPI_Comm across, std::shared_ptr<SharedGroup> group, LaneOptions options);

  // Collective: reduce in[0..n) of all ranks into out[0..n); return the bytes this rank has sent
  // through MPI. `in` and `out` are the same or do not overlap. Throws TimedOut, Mismatch,
  // std::runtime_error on an MPI fault, std::invalid_argument for an algorithm that is not there.
  std::size_t allreduce(Algorithm algorithm, const void* in, void* out, std::size_t n, Dtype dtype,
                        Op op);

  // Collective inside the node, see SharedGroup.
  void gather(const void* own, std::size_t bytes, void* out);
  std::vector<Shared> share(const void* own, std::size_t bytes);

  SharedGroup* group() const { return group_.get(); }
  // Throws std::invalid_argument where the node cannot share memory.
  SharedAllreduce& shared() const;
  double waited() const { return own_.seconds + (group_ ? group_->waiting.seconds : 0); }
  // From any thread: end a wait under way, and every later one, as if it were too late.
  void cancel();
  // Bytes of memory that this lane has taken for its segments.
  std::size_t memory() const { return workspace_.size() + wide_.size() * sizeof(float); }
  // Explain what a wait that took too long was waiting for.
  std::string explain(const std::string& reason) const;

  // Up to so many bytes the bindings' short way need not choose: `shared` it is.
  std::size_t short_bytes = 0;

 private:
  // Elements widened at a time. With it, a workspace of two segments and the group's memory the two
  // lanes of a communicator together take less than 8 MB.
  static constexpr std::size_t kPiece = 64 * 1024;
  static constexpr std::size_t kShort = 16 * 1024;  // bytes, for recursive doubling across nodes

  template <class T>
  std::size_t run(Algorithm algorithm, const T* in, T* out, std::size_t n, Op op);
  template <class T>
  std::size_t run_wide(Algorithm algorithm, const T* in, T* out, std::size_t n, Op op);
  // Messages need a workspace: own memory, or else, while the group reduces nothing, its scratch
  // memory where that is long enough.
  enum class Work { own, scratch };
  template <class T>
  std::size_t run_messages(Algorithm algorithm, MPI_Comm comm, T* data, std::size_t n, Op op,
                           Work work);
  template <class T>
  std::size_t run_hierarchical(const T* in, T* out, std::size_t n, Op op);
  template <class F>
  decltype(auto) explained(const char* what, F run);
  void* workspace(std::size_t bytes, Work work);

  MPI_Comm comm_;
  MPI_Comm across_;
  std::shared_ptr<SharedGroup> group_;
  std::unique_ptr<SharedAllreduce> shared_;
  LaneOptions options_;
  Waiting own_;
  int size_ = 1;
  std::vector<char> workspace_;
  std::vector<float> wide_;
};

}  // namespace paropt
