// Python bindings of the collectives: argument checks and GIL release, no loops.
#include <mpi.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <climits>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "neighbor_exchange.hpp"
#include "ring_allreduce.hpp"

namespace py = pybind11;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

#define PAROPT_TEXT_(x) #x
#define PAROPT_TEXT(x) PAROPT_TEXT_(x)

// From the macros of mpi.h, not from the library: it must be known before the first MPI call.
std::string built_with() {
#if defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#elif defined(OPEN_MPI)
  return "Open MPI " PAROPT_TEXT(OMPI_MAJOR_VERSION) "." PAROPT_TEXT(
      OMPI_MINOR_VERSION) "." PAROPT_TEXT(OMPI_RELEASE_VERSION);
#elif defined(MPI_ABI_VERSION)
  return "MPI ABI " PAROPT_TEXT(MPI_ABI_VERSION) "." PAROPT_TEXT(MPI_ABI_SUBVERSION);
#else
  return "MPI " PAROPT_TEXT(MPI_VERSION) "." PAROPT_TEXT(MPI_SUBVERSION);
#endif
}

bool mpi_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

// An MPI_Comm is an int in MPICH and a pointer in Open MPI; mpi4py widens the former with its sign,
// which an unsigned Python integer can only hold modulo 2^64.
MPI_Comm communicator(const py::int_& handle) {
  const std::uint64_t bits = PyLong_AsUnsignedLongLongMask(handle.ptr());
  if (PyErr_Occurred()) throw py::error_already_set();
  static_assert(sizeof(MPI_Comm) == sizeof(std::uint32_t) ||
                sizeof(MPI_Comm) == sizeof(std::uint64_t));
  MPI_Comm comm;
  if constexpr (sizeof(MPI_Comm) == sizeof(std::uint32_t)) {
    const auto low = static_cast<std::uint32_t>(bits);
    std::memcpy(&comm, &low, sizeof comm);
  } else {
    std::memcpy(&comm, &bits, sizeof comm);
  }
  if (comm == MPI_COMM_NULL) throw py::value_error("comm_handle must not be MPI_COMM_NULL");
  return comm;
}

paropt::Op operation(const std::string& op) {
  if (op == "sum") return paropt::Op::sum;
  if (op == "mean") return paropt::Op::mean;
  if (op == "min") return paropt::Op::min;
  if (op == "max") return paropt::Op::max;
  throw py::value_error("op must be sum, mean, min or max, got '" + op + "'");
}

template <class T>
std::size_t ring_allreduce(const py::int_& comm_handle, Array<T> buffer, const std::string& op,
                           std::size_t segment_bytes, std::size_t max_count, Array<T> workspace) {
  const MPI_Comm comm = communicator(comm_handle);
  const paropt::Op operation_ = operation(op);
  if (segment_bytes == 0) throw py::value_error("segment_bytes must be at least 1, got 0");
  if (max_count < 1 || max_count > INT_MAX) {
    throw py::value_error("max_count must be in [1, " + std::to_string(INT_MAX) + "], got " +
                          std::to_string(max_count));
  }
  if (!buffer.writeable()) throw py::value_error("buffer must be writable");
  if (!workspace.writeable()) throw py::value_error("workspace must be writable");
  const std::size_t n = static_cast<std::size_t>(buffer.size());
  const std::size_t segment = paropt::ring_segment(sizeof(T), segment_bytes, max_count);
  const std::size_t needed = paropt::ring_workspace(comm, n, segment);
  if (static_cast<std::size_t>(workspace.size()) < needed) {
    throw py::value_error("workspace must have at least " + std::to_string(needed) +
                          " elements, got " + std::to_string(workspace.size()));
  }
  T* const data = buffer.mutable_data();
  T* const scratch = workspace.mutable_data();
  py::gil_scoped_release release;
  return paropt::ring_allreduce(comm, data, n, operation_, segment, scratch);
}

template <class T>
std::size_t neighbor_exchange(const py::int_& comm_handle, const Array<T>& in, Array<T> out,
                              const std::vector<int>& targets, const std::vector<int>& sources,
                              double own_weight, const std::vector<double>& weights,
                              std::size_t segment, Array<T> workspace) {
  const MPI_Comm comm = communicator(comm_handle);
  if (out.size() != in.size()) throw py::value_error("out must have as many elements as in");
  if (!out.writeable()) throw py::value_error("out must be writable");
  if (!workspace.writeable()) throw py::value_error("workspace must be writable");
  if (weights.size() != sources.size()) throw py::value_error("each source must have a weight");
  if (segment < 1 || segment > INT_MAX) {
    throw py::value_error("segment must be in [1, " + std::to_string(INT_MAX) + "], got " +
                          std::to_string(segment));
  }
  const std::size_t n = static_cast<std::size_t>(in.size());
  const std::size_t needed = paropt::neighbor_exchange_workspace(n, sources.size(), segment);
  if (static_cast<std::size_t>(workspace.size()) < needed) {
    throw py::value_error("workspace must have at least " + std::to_string(needed) +
                          " elements, got " + std::to_string(workspace.size()));
  }
  const T* const from = in.data();
  T* const to = out.mutable_data();
  T* const scratch = workspace.mutable_data();
  py::gil_scoped_release release;
  return paropt::neighbor_exchange(comm, from, to, n, {targets, sources, weights, own_weight},
                                   segment, scratch);
}

template <class T>
void define_neighbor_exchange(py::module_& m) {
  m.def("neighbor_exchange", &neighbor_exchange<T>, py::arg("comm_handle"),
        py::arg("in_").noconvert(), py::arg("out").noconvert(), py::arg("targets"),
        py::arg("sources"), py::arg("own_weight"), py::arg("weights"), py::arg("segment"),
        py::arg("workspace").noconvert(),
        "Mix a float32 or float64 buffer with those of the sources; return the bytes sent.");
}

}  // namespace

PYBIND11_MODULE(_mpi, m, py::mod_gil_not_used()) {
  m.doc() = "Collectives over MPI; import mpi4py.MPI first, which starts MPI.";
  m.def("built_with", &built_with, "Name and version of the MPI this module was compiled against.");
  m.def("mpi_initialized", &mpi_initialized,
        "Whether MPI is running, as the MPI library of this module sees it.");
  constexpr const char* doc =
      "Reduce a float32 or float64 buffer over all ranks in place; return the bytes sent.";
  m.def("ring_allreduce", &ring_allreduce<float>, py::arg("comm_handle"),
        py::arg("buffer").noconvert(), py::arg("op"), py::arg("segment_bytes"),
        py::arg("max_count"), py::arg("workspace").noconvert(), doc);
  m.def("ring_allreduce", &ring_allreduce<double>, py::arg("comm_handle"),
        py::arg("buffer").noconvert(), py::arg("op"), py::arg("segment_bytes"),
        py::arg("max_count"), py::arg("workspace").noconvert(), doc);
  define_neighbor_exchange<float>(m);
  define_neighbor_exchange<double>(m);
}
