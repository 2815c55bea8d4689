// What every source that talks MPI shares: checked calls, error codes instead of aborts, datatypes.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "half.hpp"

namespace paropt {

// Throw std::runtime_error with the call and MPI's own text unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(call) + ": " + std::string(text, length));
}

#define MPI_CHECK(call) ::paropt::check_mpi((call), #call)

// While alive, faults on `comm` come back as error codes: the default handler would end the
// process.
class ErrorsReturn {
 public:
  explicit ErrorsReturn(MPI_Comm comm) : comm_(comm) {
    MPI_CHECK(MPI_Comm_get_errhandler(comm, &previous_));
    MPI_CHECK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  }
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(comm_, previous_);
    MPI_Errhandler_free(&previous_);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;
  ErrorsReturn& operator=(const ErrorsReturn&) = delete;

 private:
  MPI_Comm comm_;
  MPI_Errhandler previous_ = MPI_ERRHANDLER_NULL;
};

inline MPI_Datatype datatype(const float*) { return MPI_FLOAT; }
inline MPI_Datatype datatype(const double*) { return MPI_DOUBLE; }
inline MPI_Datatype datatype(const std::int32_t*) { return MPI_INT32_T; }
inline MPI_Datatype datatype(const std::int64_t*) { return MPI_INT64_T; }
// MPI knows no 16-bit floats; nothing but their bits is asked of it.
inline MPI_Datatype datatype(const Float16*) { return MPI_UINT16_T; }
inline MPI_Datatype datatype(const BFloat16*) { return MPI_UINT16_T; }

}  // namespace paropt
