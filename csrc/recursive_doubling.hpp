// Recursive doubling all-reduce over MPI: for short vectors, where the number of messages counts
// and not their length. R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective
// communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19(1), 2005, section 4.4.
//
// With P = 2^d ranks, in step s = 0..d-1 every rank swaps its whole vector with rank xor 2^s and
// folds the two. Otherwise the first 2(P - 2^d) ranks begin in pairs: the even one gives its vector
// to the odd one, stands by, and receives the result at the end.
//
// Both of a pair fold the vector of the lower rank first, so that all ranks end with the same bits.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "fold.hpp"
#include "waiting.hpp"

namespace paropt {

// Reduce data[0..n) over all ranks of `comm`, in place; return the bytes this rank has sent.
//
// Collective; every rank passes the same n, op and max_count, the largest count given to MPI.
// `workspace` has room for min(n, max_count) elements and does not overlap `data`. T is float,
// double, int32_t or int64_t. Uses tag 7302. Throws as ring_allreduce does.
template <class T>
std::size_t recursive_doubling(MPI_Comm comm, T* data, std::size_t n, Op op, std::size_t max_count,
                               T* workspace, Waiting* waiting = nullptr);

}  // namespace paropt
