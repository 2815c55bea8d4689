// The contract and the words chunk, segment and step are in ring_allreduce.hpp.
#include "ring_allreduce.hpp"

#include <algorithm>

#include "mpi_common.hpp"
#include "transfer.hpp"

namespace paropt {
namespace {

constexpr int kTag = 7301;

// Where a segment lies in the buffer.
struct Piece {
  std::size_t begin;
  std::size_t count;
};

struct Ring {
  MPI_Comm comm;
  int rank = 0;
  int size = 1;
  std::size_t n;
  std::size_t segment;
  Waiting* waiting;
  std::size_t segments = 0;  // per step: those of the longest chunk, chunk 0

  Ring(MPI_Comm comm, std::size_t n, std::size_t segment, Waiting* waiting = nullptr)
      : comm(comm), n(n), segment(segment), waiting(waiting) {
    MPI_CHECK(MPI_Comm_rank(comm, &rank));
    MPI_CHECK(MPI_Comm_size(comm, &size));
    segments = (chunk_begin(1) + segment - 1) / segment;
  }

  int left() const { return (rank + size - 1) % size; }
  int right() const { return (rank + 1) % size; }
  std::size_t steps() const { return static_cast<std::size_t>(size) - 1; }

  std::size_t chunk_begin(std::size_t chunk) const {
    const std::size_t ranks = static_cast<std::size_t>(size);
    return chunk * (n / ranks) + std::min(chunk, n % ranks);
  }

  Piece chunk(int owner) const {
    const std::size_t begin = chunk_begin(static_cast<std::size_t>(owner));
    return {begin, chunk_begin(static_cast<std::size_t>(owner) + 1) - begin};
  }

  // Item t of a phase is segment t mod segments of step t div segments; in step s it belongs to the
  // chunk `lag` + s places behind this rank. Empty where that chunk is shorter than the longest.
  Piece piece(std::size_t item, std::size_t lag) const {
    const std::size_t ranks = static_cast<std::size_t>(size);
    const std::size_t chunk = (rank + 2 * ranks - lag - item / segments) % ranks;
    const std::size_t end = chunk_begin(chunk + 1);
    const std::size_t begin = std::min(end, chunk_begin(chunk) + item % segments * segment);
    return {begin, std::min(segment, end - begin)};
  }
};

// Walk one phase: send the chunks from `lag` places behind, receive those one place further, at
// place(item, piece), and hand each to arrived(item, piece). Returns the elements sent.
// A send of item t only reads what arrived with item t - segments, and no piece is received into
// memory that is still being sent from.
template <class T, class Place, class Arrived>
std::size_t walk(const Ring& ring, std::size_t lag, const T* data, Place place, Arrived arrived) {
  const std::size_t items = ring.steps() * ring.segments;
  std::size_t sent = 0;
  Transfer sends[2];
  Transfer receives[2];
  const auto expect = [&](std::size_t item) {
    if (item == items) return;
    const Piece piece = ring.piece(item, lag + 1);
    receives[item % 2].receive(ring.comm, ring.left(), kTag, place(item, piece), piece.count);
  };
  expect(0);
  for (std::size_t item = 0; item < items; ++item) {
    expect(item + 1);
    const Piece outgoing = ring.piece(item, lag);
    sends[item % 2].wait(ring.waiting);
    sends[item % 2].send(ring.comm, ring.right(), kTag, data + outgoing.begin, outgoing.count);
    sent += outgoing.count;
    receives[item % 2].wait(ring.waiting);
    arrived(item, ring.piece(item, lag + 1));
  }
  sends[0].wait(ring.waiting);
  sends[1].wait(ring.waiting);
  return sent;
}

template <class T>
std::size_t reduce_scatter(const Ring& ring, T* data, Op op, T* workspace) {
  // Two halves: one segment is folded in while the next one arrives in the other half.
  const std::size_t half = std::min(ring.segment, ring.chunk_begin(1));
  const auto slot = [&](std::size_t item) { return workspace + item % 2 * half; };
  const std::size_t last_step = (ring.steps() - 1) * ring.segments;
  return walk(
      ring, 1, data, [&](std::size_t item, Piece) { return slot(item); },
      [&](std::size_t item, Piece piece) {
        fold(op, data + piece.begin, slot(item), piece.count);
        // Complete in the last step: the owner scales it while it is in the cache.
        if (op == Op::mean && item >= last_step) {
          divide(data + piece.begin, piece.count, ring.size);
        }
      });
}

template <class T>
std::size_t all_gather(const Ring& ring, T* data) {
  return walk(
      ring, 0, data, [&](std::size_t, Piece piece) { return data + piece.begin; },
      [](std::size_t, Piece) {});
}

// One piece of the buffer, whose chunks are no longer than a segment: each to its owner, who folds
// them in `wide`. Returns the elements sent.
template <class T>
std::size_t scatter_piece(const Ring& ring, T* data, Op op, float* wide, T* slots) {
  const int ranks = ring.size;
  const Piece own = ring.chunk(ring.rank);
  std::size_t sent = 0;
  Transfer sends[2];
  Transfer receives[2];
  const auto slot = [&](int step) { return slots + step % 2 * ring.segment; };
  const auto expect = [&](int step) {
    const int source = (ring.rank + ranks - step) % ranks;
    if (step < ranks) receives[step % 2].receive(ring.comm, source, kTag, slot(step), own.count);
  };
  widen(wide, data + own.begin, own.count);
  expect(1);
  for (int step = 1; step < ranks; ++step) {
    expect(step + 1);
    const int owner = (ring.rank + step) % ranks;
    const Piece outgoing = ring.chunk(owner);
    sends[step % 2].wait(ring.waiting);
    sends[step % 2].send(ring.comm, owner, kTag, data + outgoing.begin, outgoing.count);
    sent += outgoing.count;
    receives[step % 2].wait(ring.waiting);
    fold_wide(op, wide, slot(step), own.count);
  }
  sends[0].wait(ring.waiting);
  sends[1].wait(ring.waiting);
  if (op == Op::mean) divide(wide, own.count, ranks);
  narrow(data + own.begin, wide, own.count);
  return sent;
}

template <class T>
std::size_t reduce_narrow(const Ring& whole, T* data, Op op, void* workspace) {
  const std::size_t length = std::min(whole.segment, whole.chunk_begin(1));
  const std::size_t piece = length * static_cast<std::size_t>(whole.size);
  float* const wide = static_cast<float*>(workspace);
  T* const slots = reinterpret_cast<T*>(wide + length);
  std::size_t sent = 0;
  for (std::size_t at = 0; at < whole.n; at += piece) {
    const Ring ring(whole.comm, std::min(piece, whole.n - at), length, whole.waiting);
    sent += scatter_piece(ring, data + at, op, wide, slots);
    sent += all_gather(ring, data + at);
  }
  return sent;
}

}  // namespace

std::size_t ring_segment(std::size_t item_bytes, std::size_t segment_bytes, std::size_t max_count) {
  return std::max<std::size_t>(1, std::min(segment_bytes / item_bytes, max_count));
}

template <class T>
std::size_t ring_workspace(MPI_Comm comm, std::size_t n, std::size_t segment) {
  const Ring ring(comm, n, segment);
  const std::size_t length = std::min(segment, ring.chunk_begin(1));
  const std::size_t wide = sizeof(T) == 2 ? sizeof(float) : 0;
  return ring.size == 1 ? 0 : length * (2 * sizeof(T) + wide);
}

template <class T>
std::size_t ring_allreduce(MPI_Comm comm, T* data, std::size_t n, Op op, std::size_t segment,
                           void* workspace, Waiting* waiting) {
  const ErrorsReturn errors_return(comm);
  const Ring ring(comm, n, segment, waiting);
  if (ring.size == 1 || n == 0) return 0;
  if constexpr (sizeof(T) == 2) {
    return reduce_narrow(ring, data, op, workspace) * sizeof(T);
  } else {
    std::size_t sent = reduce_scatter(ring, data, op, static_cast<T*>(workspace));
    sent += all_gather(ring, data);
    return sent * sizeof(T);
  }
}

#define PAROPT_INSTANTIATE(T)                                                 \
  template std::size_t ring_workspace<T>(MPI_Comm, std::size_t, std::size_t); \
  template std::size_t ring_allreduce(MPI_Comm, T*, std::size_t, Op, std::size_t, void*, Waiting*)
PAROPT_INSTANTIATE(float);
PAROPT_INSTANTIATE(double);
PAROPT_INSTANTIATE(std::int32_t);
PAROPT_INSTANTIATE(std::int64_t);
PAROPT_INSTANTIATE(Float16);
PAROPT_INSTANTIATE(BFloat16);

}  // namespace paropt
