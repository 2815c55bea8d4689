// The contract is in lane.hpp.
#include "lane.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "mpi_common.hpp"
#include "recursive_doubling.hpp"
#include "ring_allreduce.hpp"

namespace paropt {

Lane::Lane(MPI_Comm comm, MPI_Comm across, std::shared_ptr<SharedGroup> group, LaneOptions options)
    : comm_(comm), across_(across), group_(std::move(group)), options_(std::move(options)) {
  MPI_CHECK(MPI_Comm_size(comm, &size_));
  if (group_) shared_ = std::make_unique<SharedAllreduce>(*group_);
  // A poll of MPI's costs more than one of memory.
  own_.spins = (group_ ? group_->waiting.spins : kSpins) / 20;
  if (options_.background) {
    own_.yield_seconds = 0.0002;
    if (group_) {
      group_->waiting.spins = kSpinsSharedCores;
      group_->waiting.yield_seconds = own_.yield_seconds;
    }
  }
  own_.timeout = options_.timeout;
  if (group_) group_->waiting.timeout = options_.timeout;
}

void Lane::cancel() {
  own_.cancelled.store(true);
  if (group_) group_->waiting.cancelled.store(true);
}

SharedAllreduce& Lane::shared() const {
  if (!shared_) {
    throw std::invalid_argument("the ranks of this node cannot share memory; use 'ring'");
  }
  return *shared_;
}

std::string Lane::explain(const std::string& reason) const {
  const std::string missing = group_ ? group_->missing() : "";
  std::string seconds = std::to_string(own_.timeout);
  seconds.erase(seconds.find('.') + 2);
  std::string text = reason + " within " + seconds + " s: ";
  if (!missing.empty()) {
    text += "not here: " + missing;
  } else if (!options_.elsewhere.empty()) {
    text += "all ranks of this node have arrived; not here: one or more of ranks " +
            options_.elsewhere + ", on other nodes, whose progress is not known here";
  } else {
    text += "all ranks have arrived, but one no longer answers";
  }
  return text + "; raise PAROPT_TIMEOUT if they are only slow";
}

void* Lane::workspace(std::size_t bytes, Work work) {
  if (work == Work::scratch && group_ && bytes <= group_->scratch_bytes()) {
    return group_->scratch(group_->rank());
  }
  if (workspace_.size() < bytes) workspace_.resize(bytes);
  return workspace_.data();
}

template <class T>
std::size_t Lane::run_messages(Algorithm algorithm, MPI_Comm comm, T* data, std::size_t n, Op op,
                               Work work) {
  // Those of 16-bit floats have half the bytes: the workspace holds one in float32 as well.
  const std::size_t item_bytes = std::max(sizeof(T), sizeof(float));
  const std::size_t segment = ring_segment(item_bytes, options_.segment_bytes, options_.max_count);
  if (algorithm == Algorithm::ring) {
    void* const scratch = workspace(ring_workspace<T>(comm, n, segment), work);
    return ring_allreduce(comm, data, n, op, segment, scratch, &own_);
  }
  if constexpr (sizeof(T) == 2) {
    throw std::logic_error("16-bit floats are widened for this algorithm");
  } else {
    T* const scratch = static_cast<T*>(workspace(std::min(n, segment) * sizeof(T), work));
    return recursive_doubling(comm, data, n, op, segment, scratch, &own_);
  }
}

template <class T>
std::size_t Lane::run_hierarchical(const T* in, T* out, std::size_t n, Op op) {
  std::size_t sent = 0;
  const Op between_op = op == Op::mean ? Op::sum : op;
  const auto between = [&](T* part, std::size_t count) {
    const bool few = count * sizeof(T) <= kShort;
    const Algorithm algorithm = few ? Algorithm::recursive_doubling : Algorithm::ring;
    sent += run_messages(algorithm, across_, part, count, between_op, Work::own);
    if (op == Op::mean) divide(part, count, size_);
  };
  shared().run_between<T>(in, out, n, between_op, options_.leaders, between);
  return sent;
}

template <class T>
std::size_t Lane::run(Algorithm algorithm, const T* in, T* out, std::size_t n, Op op) {
  if (algorithm == Algorithm::hierarchical) return run_hierarchical(in, out, n, op);
  if (in != out) std::copy(in, in + n, out);
  return run_messages(algorithm, comm_, out, n, op, Work::scratch);
}

template <class T>
std::size_t Lane::run_wide(Algorithm algorithm, const T* in, T* out, std::size_t n, Op op) {
  std::size_t sent = 0;
  if (wide_.size() < std::min(n, kPiece)) wide_.resize(std::min(n, kPiece));
  for (std::size_t begin = 0; begin < n; begin += kPiece) {
    const std::size_t count = std::min(kPiece, n - begin);
    widen(wide_.data(), in + begin, count);
    sent += run(algorithm, wide_.data(), wide_.data(), count, op);
    narrow(out + begin, wide_.data(), count);
  }
  return sent;
}

// Run something that waits; where that takes too long, say who is missing.
template <class F>
decltype(auto) Lane::explained(const char* what, F run) {
  try {
    return run();
  } catch (const TimedOut&) {
    throw TimedOut(explain(std::string(what) + " did not end"));
  }
}

std::size_t Lane::allreduce(Algorithm algorithm, const void* in, void* out, std::size_t n,
                            Dtype dtype, Op op) {
  return explained("the all-reduce", [&]() -> std::size_t {
    if (algorithm == Algorithm::shared) {
      SharedAllreduce& all = shared();
      if (group_->size() != size_) {
        throw std::invalid_argument(
            "algorithm 'shared' needs all ranks on one node; use "
            "'hierarchical'");
      }
      all.run(in, out, n, dtype, op);
      return 0;
    }
    return with_type(dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const T* const from = static_cast<const T*>(in);
      T* const to = static_cast<T*>(out);
      if constexpr (sizeof(T) == 2) {
        if (algorithm != Algorithm::ring) return run_wide(algorithm, from, to, n, op);
        if (from != to) std::copy(from, from + n, to);
        return run_messages(algorithm, comm_, to, n, op, Work::scratch);
      } else {
        return run(algorithm, from, to, n, op);
      }
    });
  });
}

void Lane::gather(const void* own, std::size_t bytes, void* out) {
  shared();
  explained("the gather", [&] { group_->gather(own, bytes, out); });
}

std::vector<Shared> Lane::share(const void* own, std::size_t bytes) {
  shared();
  return explained("the sharing of messages", [&] { return group_->share(own, bytes); });
}

}  // namespace paropt
