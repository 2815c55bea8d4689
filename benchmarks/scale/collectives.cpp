// The collectives on a simulated cluster: built with SimGrid's smpicxx together with the unchanged
// sources of csrc/, started by scale.py.
//
//   collectives SCHEME N DENSITY ENTRY_BYTES PER_HOST    prints the simulated seconds
//   collectives check                                    fails if anything computes something else
//
// Dense all-reduce and gossip are the package's own code; of the hierarchical one that is what
// goes on between the hosts, while inside a host messages stand for shared memory. The sparse
// schemes are walked here with the messages that paropt_hpc/comm/sparse_allreduce.py sends,
// ENTRY_BYTES for every entry; selection, coding and summing take no simulated time. Buffers of all
// ranks share their memory, so that a thousand fit into one process; `check` has private ones.
#include <mpi.h>
#include <smpi/smpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "neighbor_exchange.hpp"
#include "recursive_doubling.hpp"
#include "ring_allreduce.hpp"

namespace {

constexpr std::size_t kSegment = (std::size_t{1} << 20) / sizeof(float);
constexpr std::size_t kMaxCount = 1 << 30;
constexpr std::size_t kShort = 16 * 1024 / sizeof(float);  // as in csrc/lane.hpp
constexpr int kTag = 1;

int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

// The step of a one-peer exponential graph: rank r sends to r + hop.
paropt::Neighborhood one_peer(MPI_Comm comm, int hop) {
  const int rank = rank_of(comm), size = size_of(comm);
  return {{(rank + hop) % size}, {(rank - hop + size) % size}, {0.5}, 0.5};
}

paropt::Neighborhood gossip_ring(MPI_Comm comm) {
  const int rank = rank_of(comm), size = size_of(comm);
  std::vector<int> both = {(rank - 1 + size) % size, (rank + 1) % size};
  const double third = 1.0 / 3;
  return {both, both, {third, third}, third};
}

struct Buffers {
  std::size_t n;
  float* data;
  float* scratch;
};

void ring(MPI_Comm comm, const Buffers& b) {
  paropt::ring_allreduce(comm, b.data, b.n, paropt::Op::sum, kSegment, b.scratch);
}

void recursive_doubling(MPI_Comm comm, const Buffers& b) {
  paropt::recursive_doubling(comm, b.data, b.n, paropt::Op::sum, kMaxCount, b.scratch);
}

// The ranks of this host, and those that are first on theirs.
struct Levels {
  MPI_Comm host = MPI_COMM_NULL, leaders = MPI_COMM_NULL;

  Levels(MPI_Comm comm, int per_host) {
    if (per_host == 1) return;  // splitting takes long to simulate
    const int rank = rank_of(comm);
    MPI_Comm_split(comm, rank / per_host, rank, &host);
    MPI_Comm_split(comm, rank % per_host == 0 ? 0 : MPI_UNDEFINED, rank, &leaders);
  }
};

void hierarchical(const Levels& levels, const Buffers& b) {
  const int n = static_cast<int>(b.n);
  MPI_Reduce(b.data, b.scratch, n, MPI_FLOAT, MPI_SUM, 0, levels.host);
  if (levels.leaders != MPI_COMM_NULL) {
    (b.n <= kShort ? recursive_doubling : ring)(levels.leaders, b);
  }
  MPI_Bcast(b.data, n, MPI_FLOAT, 0, levels.host);
}

void gossip(MPI_Comm comm, const Buffers& b, const paropt::Neighborhood& neighborhood) {
  paropt::neighbor_exchange(comm, b.data, b.data, b.n, neighborhood, kSegment, b.scratch);
}

// Every rank sends `bytes` to each other one, from the next one on, as the ranges of a split.
void exchange_parts(MPI_Comm comm, const Buffers& b, int bytes) {
  const int rank = rank_of(comm), size = size_of(comm);
  std::vector<MPI_Request> requests;
  for (int shift = 1; shift < size; ++shift) {
    MPI_Request request;
    MPI_Irecv(b.scratch, bytes, MPI_BYTE, (rank - shift + size) % size, kTag, comm, &request);
    requests.push_back(request);
    MPI_Isend(b.data, bytes, MPI_BYTE, (rank + shift) % size, kTag, comm, &request);
    requests.push_back(request);
  }
  // One after the other, as the package does: to wait for all at once takes SimGrid P times as
  // long.
  for (MPI_Request& request : requests) MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void all_gather(MPI_Comm comm, const Buffers& b, int bytes) {
  MPI_Allgather(b.data, bytes, MPI_BYTE, b.scratch, bytes, MPI_BYTE, comm);
}

double time_of(MPI_Comm comm, const std::function<void()>& call) {
  MPI_Barrier(comm);
  const double started = MPI_Wtime();
  call();
  double taken = MPI_Wtime() - started, slowest = 0;
  MPI_Reduce(&taken, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, comm);
  return slowest;  // on rank 0
}

// Ends the simulation unless the sources compute here what they compute elsewhere.
void check(MPI_Comm comm) {
  const int rank = rank_of(comm), size = size_of(comm);
  const std::size_t n = 3 * static_cast<std::size_t>(size) + 1;
  std::vector<float> data(n, static_cast<float>(rank)), scratch(2 * n);
  ring(comm, {n, data.data(), scratch.data()});
  const float sum = static_cast<float>(size * (size - 1) / 2);
  bool right = data[0] == sum && data[n - 1] == sum;
  std::fill(data.begin(), data.end(), static_cast<float>(rank));
  recursive_doubling(comm, {n, data.data(), scratch.data()});
  right &= data[0] == sum && data[n - 1] == sum;
  for (int hop = 1; hop < size; hop *= 2) {
    std::fill(data.begin(), data.end(), static_cast<float>(rank));
    gossip(comm, {n, data.data(), scratch.data()}, one_peer(comm, hop));
    right &= data[n - 1] == 0.5f * static_cast<float>(rank + (rank - hop + size) % size);
  }
  if (right) return;
  std::fprintf(stderr, "rank %d: a collective computed something else\n", rank);
  MPI_Abort(comm, 1);
}

// The schemes by name.
std::map<std::string, std::function<void()>> schemes(MPI_Comm comm, const Buffers& b,
                                                     double density, double entry_bytes,
                                                     int per_host) {
  const double size = size_of(comm);
  const double k = density * static_cast<double>(b.n);
  // Ranks that choose their indices at random; they never agree less than that.
  const double all = static_cast<double>(b.n) * (1 - std::pow(1 - density, size));
  const auto bytes = [=](double entries) { return static_cast<int>(40 + entries * entry_bytes); };
  const Levels levels(comm, per_host);
  const auto split = [=](double kept) {
    exchange_parts(comm, b, bytes(k / size));
    all_gather(comm, b, bytes(kept / size));
  };
  return {
      {"ring", [=] { ring(comm, b); }},
      {"recursive-doubling", [=] { recursive_doubling(comm, b); }},
      {"hierarchical", [=] { hierarchical(levels, b); }},
      {"mpi",
       [=] {
         MPI_Allreduce(MPI_IN_PLACE, b.data, static_cast<int>(b.n), MPI_FLOAT, MPI_SUM, comm);
       }},
      {"sparse-allgather", [=] { all_gather(comm, b, bytes(k)); }},
      {"sparse-split", [=] { split(all); }},
      {"sparse-reselect", [=] { split(k); }},
      {"gossip-one-peer", [=] { gossip(comm, b, one_peer(comm, size_of(comm) / 2)); }},
      {"gossip-ring", [=] { gossip(comm, b, gossip_ring(comm)); }},
  };
}

int measure(MPI_Comm comm, const std::string& scheme, std::size_t n, double density,
            double entry_bytes, int per_host) {
  // What gathers the messages of all ranks needs the most.
  const double gathered = (density * entry_bytes * static_cast<double>(n) + 128) * size_of(comm);
  const std::size_t scratch = 4 * n * sizeof(float) + static_cast<std::size_t>(gathered);
  const Buffers buffers = {n, static_cast<float*>(SMPI_SHARED_MALLOC(n * sizeof(float) + 4096)),
                           static_cast<float*>(SMPI_SHARED_MALLOC(scratch))};
  const auto all = schemes(comm, buffers, density, entry_bytes, per_host);
  const auto found = all.find(scheme);
  if (found == all.end()) return 2;
  const double seconds = time_of(comm, found->second);
  if (rank_of(comm) == 0) std::printf("%.9g\n", seconds);
  SMPI_SHARED_FREE(buffers.data);
  SMPI_SHARED_FREE(buffers.scratch);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 2;
  if (argc == 2) {
    check(MPI_COMM_WORLD);
    status = 0;
  } else if (argc == 6) {
    const std::size_t n = std::strtoull(argv[2], nullptr, 10);
    status = measure(MPI_COMM_WORLD, argv[1], n, std::atof(argv[3]), std::atof(argv[4]),
                     std::atoi(argv[5]));
  }
  MPI_Finalize();
  return status;
}
