// The contract is in recursive_doubling.hpp.
#include "recursive_doubling.hpp"

#include <algorithm>

#include "mpi_common.hpp"
#include "transfer.hpp"

namespace paropt {
namespace {

constexpr int kTag = 7302;

// The ranks that take part in the steps are numbered 0..2^d - 1; `place` is -1 for those that
// stand by.
struct Doubling {
  MPI_Comm comm;
  Waiting* waiting;
  int rank = 0;
  int size = 1;
  int active = 1;  // 2^d
  int extra = 0;   // P - 2^d: so many pairs
  int place = 0;

  Doubling(MPI_Comm comm, Waiting* waiting) : comm(comm), waiting(waiting) {
    MPI_CHECK(MPI_Comm_rank(comm, &rank));
    MPI_CHECK(MPI_Comm_size(comm, &size));
    while (2 * active <= size) active *= 2;
    extra = size - active;
    place = rank >= 2 * extra ? rank - extra : rank % 2 == 1 ? rank / 2 : -1;
  }

  int rank_at(int other) const { return other < extra ? 2 * other + 1 : other + extra; }
};

template <class T>
void swap_and_fold(const Doubling& ranks, int partner, T* data, std::size_t n, Op op,
                   T* workspace) {
  Transfer incoming;
  Transfer outgoing;
  incoming.receive(ranks.comm, partner, kTag, workspace, n);
  outgoing.send(ranks.comm, partner, kTag, data, n);
  incoming.wait(ranks.waiting);
  outgoing.wait(ranks.waiting);
  if (partner > ranks.rank) {
    fold(op, data, workspace, n);
  } else {
    fold(op, workspace, data, n);
    std::copy(workspace, workspace + n, data);
  }
}

// One piece of at most max_count elements; returns the elements sent.
template <class T>
std::size_t reduce_piece(const Doubling& ranks, T* data, std::size_t n, Op op, T* workspace) {
  std::size_t sent = 0;
  Transfer pair;
  if (ranks.place < 0) {
    pair.send(ranks.comm, ranks.rank + 1, kTag, data, n);
    pair.wait(ranks.waiting);
    pair.receive(ranks.comm, ranks.rank + 1, kTag, data, n);
    pair.wait(ranks.waiting);
    return n;
  }
  const bool paired = ranks.rank < 2 * ranks.extra;
  if (paired) {
    pair.receive(ranks.comm, ranks.rank - 1, kTag, workspace, n);
    pair.wait(ranks.waiting);
    fold(op, workspace, data, n);
    std::copy(workspace, workspace + n, data);
  }
  for (int distance = 1; distance < ranks.active; distance *= 2) {
    swap_and_fold(ranks, ranks.rank_at(ranks.place ^ distance), data, n, op, workspace);
    sent += n;
  }
  if (op == Op::mean) divide(data, n, ranks.size);
  if (paired) {
    pair.send(ranks.comm, ranks.rank - 1, kTag, data, n);
    pair.wait(ranks.waiting);
    sent += n;
  }
  return sent;
}

}  // namespace

template <class T>
std::size_t recursive_doubling(MPI_Comm comm, T* data, std::size_t n, Op op, std::size_t max_count,
                               T* workspace, Waiting* waiting) {
  const ErrorsReturn errors_return(comm);
  const Doubling ranks(comm, waiting);
  std::size_t sent = 0;
  for (std::size_t begin = 0; ranks.size > 1 && begin < n; begin += max_count) {
    sent += reduce_piece(ranks, data + begin, std::min(max_count, n - begin), op, workspace);
  }
  return sent * sizeof(T);
}

#define PAROPT_INSTANTIATE(T) \
  template std::size_t recursive_doubling(MPI_Comm, T*, std::size_t, Op, std::size_t, T*, Waiting*)
PAROPT_INSTANTIATE(float);
PAROPT_INSTANTIATE(double);
PAROPT_INSTANTIATE(std::int32_t);
PAROPT_INSTANTIATE(std::int64_t);

}  // namespace paropt
