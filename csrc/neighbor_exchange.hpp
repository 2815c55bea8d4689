// Neighbour exchange: the step of gossip. Each rank mixes its buffer with those of a few others,
//
//   out = own_weight * in + sum over sources s of weights[s] * (the buffer of s),
//
// as D-PSGD does (X. Lian et al., "Can decentralized algorithms outperform centralized
// algorithms?", NeurIPS 2017). The buffer travels in segments of equal length, the last one
// shorter; two are on their way at any time, so that one is mixed in while the next one arrives.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "waiting.hpp"

namespace paropt {

// One rank's part in a step. Each edge between two ranks is known to both.
struct Neighborhood {
  std::vector<int> targets;  // receive this rank's buffer
  std::vector<int> sources;  // in the order in which their buffers are added
  std::vector<double> weights;
  double own_weight;
};

// Elements of workspace: two segments for every source, never more than two buffers.
std::size_t neighbor_exchange_workspace(std::size_t n, std::size_t sources, std::size_t segment);

// Mix in[0..n) into out[0..n), which may be the same memory but not overlap otherwise; return the
// bytes this rank has sent.
//
// Collective among neighbours over the intra-communicator `comm`: they pass the same n and segment
// (in [1, INT_MAX]). Weights are taken as T; every product is rounded before it is added. The
// buffers belong to the caller; per call one request per edge and slot is allocated, nothing else.
// Throws std::runtime_error on an MPI fault and where a neighbour sends another length than
// expected, TimedOut where none arrives before the deadline of `waiting` (null: MPI's own waiting);
// `out` is then undefined. Uses tag 7302 on `comm`, leaves no request behind. T is float
// or double.
template <class T>
std::size_t neighbor_exchange(MPI_Comm comm, const T* in, T* out, std::size_t n,
                              const Neighborhood& neighborhood, std::size_t segment, T* workspace,
                              Waiting* waiting = nullptr);

}  // namespace paropt
