// Ring all-reduce over MPI: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", J. Parallel Distrib. Comput. 69(2), 2009.
//
// The words used here and in the code:
//   chunk    the part of the buffer that one rank owns. Chunk c has floor(n/P) elements, one more
//            if c < n mod P, and the chunks lie one behind the other in the order of the ranks.
//   segment  the piece in flight: a chunk travels as segments of equal length, the last one
//            shorter.
//   step     in one step every rank sends one chunk to its right neighbour (rank + 1) and receives
//            one from its left neighbour. Two phases of P-1 steps each make an all-reduce.
//
// Reduce-scatter: in step s rank r sends chunk r-1-s and folds what it receives into chunk r-2-s
// (all modulo P). Chunk c so starts at rank c+1, passes every rank once and arrives, complete, at
// its owner c, which for a mean then divides it by P. All-gather: in step s rank r sends chunk r-s
// and receives chunk r-1-s into its place. Each chunk is reduced along one path and copied from
// there, so all ranks end with the same bits.
//
// One rank sends 2n elements less its own chunk and its right neighbour's, about 2(P-1)/P n: the
// lower bound. Two segments are on their way at any time, so that one is folded in while the next
// one arrives; the segments of a step follow those of the step before without a pause.
//
// 16-bit floats: a partial sum on its way from rank to rank would be rounded at every hop, or have
// to travel as float32. Here the first phase is direct instead: in step s rank r sends chunk r+s to
// its owner and receives its own chunk from rank r-s, and the owner folds them in float32, its own
// first, and rounds once. The volume is the same, 16 bits for every element.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "fold.hpp"
#include "waiting.hpp"

namespace paropt {

// Elements in one segment: what fits into `segment_bytes`, at least 1 and at most `max_count`, the
// largest count given to MPI (whose counts are int: INT_MAX at most).
std::size_t ring_segment(std::size_t item_bytes, std::size_t segment_bytes, std::size_t max_count);

// Bytes of workspace that ring_allreduce<T> needs: two segments, never more than two chunks, and
// for a 16-bit T one of float32 more.
template <class T>
std::size_t ring_workspace(MPI_Comm comm, std::size_t n, std::size_t segment);

// Reduce data[0..n) over all ranks of `comm`, in place; return the bytes this rank has sent.
//
// Collective over the intra-communicator `comm`: every rank passes the same n, op and segment, all
// at least their least (n may be 0). `data` and `workspace` (of ring_workspace, aligned for float
// and T) belong to the caller and do not overlap; nothing is allocated. T is any type of fold.hpp.
// Throws std::runtime_error on an MPI fault and where a neighbour sends another length than
// expected, TimedOut on the deadline of `waiting`; `data` is then undefined. Uses tag 7301 on
// `comm`, leaves no request behind. Two threads may call it at once on different communicators if
// MPI gives MPI_THREAD_MULTIPLE.
template <class T>
std::size_t ring_allreduce(MPI_Comm comm, T* data, std::size_t n, Op op, std::size_t segment,
                           void* workspace, Waiting* waiting = nullptr);

}  // namespace paropt
