// One message on its way, received or sent with the length that both sides expect.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "mpi_common.hpp"
#include "waiting.hpp"

namespace paropt {

// Never outlives its buffer: an exception ends it before the caller can free the memory.
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

  // A message of no elements is not sent; the other side does not expect it either.
  template <class T>
  void send(MPI_Comm comm, int to, int tag, const T* data, std::size_t count) {
    receives_ = false;
    if (count == 0) return;
    MPI_CHECK(MPI_Isend(data, static_cast<int>(count), datatype(data), to, tag, comm, &request_));
  }

  template <class T>
  void receive(MPI_Comm comm, int from, int tag, T* data, std::size_t count) {
    receives_ = true;
    expected_ = static_cast<int>(count);
    type_ = datatype(data);
    if (count == 0) return;
    MPI_CHECK(MPI_Irecv(data, expected_, type_, from, tag, comm, &request_));
  }

  // With null the waiting is MPI's own.
  void wait(Waiting* waiting) {
    if (request_ == MPI_REQUEST_NULL) return;
    MPI_Status status;
    if (waiting == nullptr) {
      MPI_CHECK(MPI_Wait(&request_, &status));
    } else {
      poll(*waiting, &status);
    }
    if (!receives_) return;
    int count = 0;
    MPI_CHECK(MPI_Get_count(&status, type_, &count));
    if (count == expected_) return;
    throw std::runtime_error("all-reduce: a segment of " + std::to_string(count) +
                             " elements arrived where " + std::to_string(expected_) +
                             " were expected; all ranks must pass the same size, dtype, "
                             "segment_bytes and max_count");
  }

 private:
  void poll(Waiting& waiting, MPI_Status* status) {
    const auto done = [&] {
      int flag = 0;
      MPI_CHECK(MPI_Test(&request_, &flag, status));
      return flag != 0;
    };
    wait_until(waiting, done, [] { return std::string("a message did not arrive"); });
  }

  MPI_Request request_ = MPI_REQUEST_NULL;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  int expected_ = 0;
  bool receives_ = false;
};

}  // namespace paropt
