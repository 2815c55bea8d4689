// One message on its way between two ranks, as an object that cannot leak its request.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <stdexcept>
#include <string>

#include "mpi_common.hpp"

namespace paropt {

// Never outlives its buffer: an exception ends it before the caller can free the memory. Used
// again and again, but only after wait(). Empty messages are not sent, so both sides must know.
class Transfer {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    if (request_ == MPI_REQUEST_NULL) return;
    if (receives_) {
      MPI_Cancel(&request_);
      MPI_Wait(&request_, MPI_STATUS_IGNORE);
    } else {
      MPI_Request_free(&request_);
    }
  }

  template <class T>
  void send(MPI_Comm comm, int target, int tag, const T* data, std::size_t count) {
    receives_ = false;
    if (count == 0) return;
    MPI_CHECK(
        MPI_Isend(data, static_cast<int>(count), datatype(data), target, tag, comm, &request_));
  }

  template <class T>
  void receive(MPI_Comm comm, int source, int tag, T* data, std::size_t count) {
    receives_ = true;
    expected_ = static_cast<int>(count);
    type_ = datatype(data);
    if (count == 0) return;
    MPI_CHECK(MPI_Irecv(data, expected_, type_, source, tag, comm, &request_));
  }

  // Throws std::runtime_error, its text led by `what`, if less arrived than was expected.
  void wait(const char* what) {
    if (request_ == MPI_REQUEST_NULL) return;
    MPI_Status status;
    MPI_CHECK(MPI_Wait(&request_, &status));
    if (!receives_) return;
    int count = 0;
    MPI_CHECK(MPI_Get_count(&status, type_, &count));
    if (count == expected_) return;
    throw std::runtime_error(std::string(what) + ": a segment of " + std::to_string(count) +
                             " elements arrived where " + std::to_string(expected_) +
                             " were expected; all ranks must pass the same size, dtype, "
                             "segment_bytes and max_count");
  }

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  int expected_ = 0;
  bool receives_ = false;
};

}  // namespace paropt
