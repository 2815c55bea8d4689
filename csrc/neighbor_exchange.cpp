// The contract is in neighbor_exchange.hpp.
#include "neighbor_exchange.hpp"

#include <algorithm>

#include "mpi_common.hpp"
#include "transfer.hpp"

namespace paropt {
namespace {

constexpr int kTag = 7302;

// The messages of one segment, to and from all neighbours.
class Slot {
 public:
  explicit Slot(const Neighborhood& neighborhood)
      : neighborhood_(neighborhood),
        sends_(neighborhood.targets.size()),
        receives_(neighborhood.sources.size()) {}

  // Source j's part arrives at scratch + j * stride.
  template <class T>
  void start(MPI_Comm comm, const T* data, std::size_t count, T* scratch, std::size_t stride) {
    for (std::size_t j = 0; j < receives_.size(); ++j) {
      receives_[j].receive(comm, neighborhood_.sources[j], kTag, scratch + j * stride, count);
    }
    for (std::size_t j = 0; j < sends_.size(); ++j) {
      sends_[j].send(comm, neighborhood_.targets[j], kTag, data, count);
    }
  }

  // The sends too: mixing in place overwrites what they read.
  void wait(Waiting* waiting) {
    for (Transfer& receive : receives_) receive.wait(waiting);
    for (Transfer& send : sends_) send.wait(waiting);
  }

 private:
  const Neighborhood& neighborhood_;
  std::vector<Transfer> sends_;
  std::vector<Transfer> receives_;
};

// No __restrict on `out`: it may be `in`.
template <class T>
void mix(const Neighborhood& neighborhood, const T* in, T* out, std::size_t count, const T* scratch,
         std::size_t stride) {
  const T own = static_cast<T>(neighborhood.own_weight);
  for (std::size_t i = 0; i < count; ++i) out[i] = own * in[i];
  for (std::size_t j = 0; j < neighborhood.sources.size(); ++j) {
    const T weight = static_cast<T>(neighborhood.weights[j]);
    const T* received = scratch + j * stride;
    for (std::size_t i = 0; i < count; ++i) out[i] += weight * received[i];
  }
}

}  // namespace

std::size_t neighbor_exchange_workspace(std::size_t n, std::size_t sources, std::size_t segment) {
  return 2 * sources * std::min(segment, n);
}

template <class T>
std::size_t neighbor_exchange(MPI_Comm comm, const T* in, T* out, std::size_t n,
                              const Neighborhood& neighborhood, std::size_t segment, T* workspace,
                              Waiting* waiting) {
  const ErrorsReturn errors_return(comm);
  const std::size_t stride = std::min(segment, n);
  const std::size_t items = (n + segment - 1) / segment;
  Slot slots[2] = {Slot(neighborhood), Slot(neighborhood)};
  const auto length = [&](std::size_t item) { return std::min(segment, n - item * segment); };
  const auto scratch = [&](std::size_t item) {
    return workspace + item % 2 * neighborhood.sources.size() * stride;
  };
  const auto start = [&](std::size_t item) {
    if (item == items) return;
    slots[item % 2].start(comm, in + item * segment, length(item), scratch(item), stride);
  };
  start(0);
  for (std::size_t item = 0; item < items; ++item) {
    start(item + 1);
    slots[item % 2].wait(waiting);
    mix(neighborhood, in + item * segment, out + item * segment, length(item), scratch(item),
        stride);
  }
  return neighborhood.targets.size() * n * sizeof(T);
}

template std::size_t neighbor_exchange(MPI_Comm, const float*, float*, std::size_t,
                                       const Neighborhood&, std::size_t, float*, Waiting*);
template std::size_t neighbor_exchange(MPI_Comm, const double*, double*, std::size_t,
                                       const Neighborhood&, std::size_t, double*, Waiting*);

}  // namespace paropt
