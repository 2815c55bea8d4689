// Python bindings of the collectives: argument checks and GIL release, no loops.
#include <mpi.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common.hpp"
#include "lane.hpp"
#include "neighbor_exchange.hpp"
#include "progress.hpp"
#include "shared_allreduce.hpp"
#include "shared_group.hpp"

namespace py = pybind11;

namespace {

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

bool find_operation(const char* name, paropt::Op* op) {
  constexpr const char* kNames[] = {"sum", "mean", "min", "max"};
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(name, kNames[i]) != 0) continue;
    *op = static_cast<paropt::Op>(i);
    return true;
  }
  return false;
}

paropt::Op operation(const std::string& name) {
  paropt::Op op;
  if (find_operation(name.c_str(), &op)) return op;
  throw py::value_error("op must be sum, mean, min or max, got '" + name + "'");
}

void set_isa(const std::string& name) {
  for (const paropt::Isa isa : paropt::kIsas) {
    if (name == paropt::isa_name(isa)) return paropt::set_isa(isa);
  }
  throw py::value_error("name must be baseline, avx2 or avx512, got '" + name + "'");
}

// ---- lanes -----------------------------------------------------------------------------------

// NumPy's number of ml_dtypes.bfloat16, which NumPy itself does not know.
int bfloat16_number = -1;

// -1 for a dtype that no collective reduces; big-endian numbers are among those.
int dtype_code(const py::array& array) {
  const py::dtype dtype = array.dtype();
  if (dtype.byteorder() != '=' && dtype.byteorder() != '|') return -1;
  const int number = dtype.num();
  if (number == bfloat16_number) return static_cast<int>(paropt::Dtype::bfloat16);
  switch (dtype.kind() << 8 | static_cast<int>(dtype.itemsize())) {
    case 'f' << 8 | 4:
      return static_cast<int>(paropt::Dtype::float32);
    case 'f' << 8 | 8:
      return static_cast<int>(paropt::Dtype::float64);
    case 'f' << 8 | 2:
      return static_cast<int>(paropt::Dtype::float16);
    case 'i' << 8 | 4:
      return static_cast<int>(paropt::Dtype::int32);
    case 'i' << 8 | 8:
      return static_cast<int>(paropt::Dtype::int64);
    default:
      return -1;
  }
}

bool is_plain(const py::array& array, bool writable) {
  constexpr int kLaid = py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  return (array.flags() & kLaid) == kLaid && (!writable || array.writeable());
}

paropt::Algorithm algorithm_of(const std::string& name) {
  if (name == "ring") return paropt::Algorithm::ring;
  if (name == "recursive_doubling") return paropt::Algorithm::recursive_doubling;
  if (name == "shared") return paropt::Algorithm::shared;
  if (name == "hierarchical") return paropt::Algorithm::hierarchical;
  throw py::value_error(
      "algorithm must be ring, recursive_doubling, shared or hierarchical, got '" + name + "'");
}

// The checked arguments of one reduction, as the core takes them.
struct Reduction {
  paropt::Algorithm algorithm;
  const void* in;
  void* out;
  std::size_t n;
  paropt::Dtype dtype;
  paropt::Op op;

  Reduction(const std::string& algorithm_name, const py::array& buffer, py::array& result,
            const std::string& op_name)
      : algorithm(algorithm_of(algorithm_name)), op(operation(op_name)) {
    const int code = dtype_code(buffer);
    if (code < 0 || dtype_code(result) != code) {
      throw py::type_error("buffer and out must have the same dtype, one that can be reduced");
    }
    if (!is_plain(buffer, false) || !is_plain(result, true) || buffer.size() != result.size()) {
      throw py::value_error(
          "buffer and out must be contiguous, aligned, of one size; out writable");
    }
    dtype = static_cast<paropt::Dtype>(code);
    in = buffer.data();
    out = result.mutable_data();
    n = static_cast<std::size_t>(buffer.size());
  }

  std::size_t run(paropt::Lane& lane) const {
    return lane.allreduce(algorithm, in, out, n, dtype, op);
  }
};

std::size_t lane_allreduce(paropt::Lane& lane, const std::string& algorithm,
                           const py::array& buffer, py::array result, const std::string& op) {
  const Reduction reduction(algorithm, buffer, result, op);
  py::gil_scoped_release release;
  return reduction.run(lane);
}

void raise_as(const char* name, const char* text, bool on_every_rank) {
  const py::object cls = py::module_::import("paropt_hpc.errors").attr(name);
  py::object error = cls(text);
  if (on_every_rank) error.attr("on_every_rank") = true;
  PyErr_SetObject(cls.ptr(), error.ptr());
}

void count_short(paropt::Lane& lane, void* data, std::size_t n, paropt::Dtype dtype,
                 paropt::Op op) {
  paropt::SharedGroup& group = *lane.group();
  paropt::SharedTraffic& traffic = lane.shared().traffic;
  const auto start = paropt::Clock::now();
  const double waited = group.waiting.seconds;
  group.enter(0);
  lane.allreduce(paropt::Algorithm::shared, data, data, n, dtype, op);
  group.leave();
  traffic.count(n, paropt::item_bytes(dtype), group.rank(), group.size(),
                paropt::seconds_since(start), group.waiting.seconds - waited);
}

// The short way of a training loop's reductions through shared memory: true if it was gone.
// Whatever is not quite usual is left to the long way, which says what is wrong with it.
bool go_short(paropt::Lane& lane, PyObject* object, PyObject* op_name) {
  if (!py::isinstance<py::array>(object) || !PyUnicode_Check(op_name)) return false;
  py::array buffer = py::reinterpret_borrow<py::array>(object);
  const int code = dtype_code(buffer);
  const char* const name = PyUnicode_AsUTF8(op_name);
  paropt::Op op;
  if (code < 0 || name == nullptr || !find_operation(name, &op)) {
    PyErr_Clear();
    return false;
  }
  const auto dtype = static_cast<paropt::Dtype>(code);
  const bool whole = dtype == paropt::Dtype::int32 || dtype == paropt::Dtype::int64;
  const std::size_t n = static_cast<std::size_t>(buffer.size());
  if (n * paropt::item_bytes(dtype) > lane.short_bytes) return false;
  if (!is_plain(buffer, true) || (whole && op == paropt::Op::mean)) return false;
  void* const data = buffer.mutable_data();
  py::gil_scoped_release release;
  count_short(lane, data, n, dtype, op);
  return true;
}

// Called without pybind11's dispatcher, which would cost as much as the reduction.
PyObject* short_allreduce(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "short_allreduce takes buffer and op");
    return nullptr;
  }
  auto& lane = *static_cast<std::shared_ptr<paropt::Lane>*>(PyCapsule_GetPointer(self, nullptr));
  try {
    return PyBool_FromLong(go_short(*lane, arguments[0], arguments[1]));
  } catch (const paropt::TimedOut& error) {
    raise_as("CollectiveTimeout", error.what(), false);
  } catch (const paropt::Mismatch& error) {
    raise_as("CollectiveMismatch", error.what(), true);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef short_method = {
    "short_allreduce", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&short_allreduce)),
    METH_FASTCALL,
    "Reduce a buffer in place through shared memory if it is of the usual kind and not longer "
    "than short_bytes; say whether it was."};

// The function, bound to a lane that it keeps alive.
py::object lane_short(std::shared_ptr<paropt::Lane> lane) {
  auto owned = std::make_unique<std::shared_ptr<paropt::Lane>>(std::move(lane));
  const py::capsule keeper(owned.release(), [](void* lane) {
    delete static_cast<std::shared_ptr<paropt::Lane>*>(lane);
  });
  return py::reinterpret_steal<py::object>(PyCFunction_New(&short_method, keeper.ptr()));
}

py::tuple lane_traffic(paropt::Lane& lane) {
  const paropt::SharedTraffic counted = lane.shared().traffic;
  lane.shared().traffic = {};
  return py::make_tuple(counted.calls, counted.sent, counted.received, counted.seconds,
                        counted.waited);
}

std::shared_ptr<paropt::Job> progress_start(paropt::ProgressThread& thread,
                                            std::shared_ptr<paropt::Lane> lane,
                                            const std::string& algorithm, const py::array& buffer,
                                            py::array result, const std::string& op) {
  const Reduction reduction(algorithm, buffer, result, op);
  return thread.start([lane, reduction] { return reduction.run(*lane); });
}

void lane_gather(paropt::Lane& lane, const py::array& own, py::array out) {
  const auto bytes = static_cast<std::size_t>(own.nbytes());
  const auto ranks = static_cast<std::size_t>(lane.group() ? lane.group()->size() : 0);
  if (!is_plain(own, false) || !is_plain(out, true) ||
      static_cast<std::size_t>(out.nbytes()) != ranks * bytes ||
      bytes > paropt::SharedGroup::kCarried) {
    throw py::value_error("own must be contiguous and short, out a row of it for each rank");
  }
  const void* const from = own.data();
  void* const to = out.mutable_data();
  py::gil_scoped_release release;
  lane.gather(from, bytes, to);
}

// The memory stays mapped until the group is freed; so the arrays must not outlive that.
py::list lane_share(paropt::Lane& lane, const py::array_t<std::uint8_t, py::array::c_style>& own) {
  std::vector<paropt::Shared> found;
  {
    const std::uint8_t* const from = own.data();
    const auto bytes = static_cast<std::size_t>(own.nbytes());
    py::gil_scoped_release release;
    found = lane.share(from, bytes);
  }
  py::list views;
  for (const paropt::Shared& shared : found) {
    py::array view(py::dtype::of<std::uint8_t>(), {static_cast<py::ssize_t>(shared.bytes)}, {1},
                   shared.data, py::capsule(shared.data, [](void*) {}));
    py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
    views.append(std::move(view));
  }
  return views;
}

// Memory of the group as an array; `keeper` keeps the memory's owner alive.
py::array group_allocate(paropt::SharedGroup& group, std::size_t n, const py::dtype& dtype) {
  void* memory = nullptr;
  {
    py::gil_scoped_release release;
    memory = group.allocate(n * static_cast<std::size_t>(dtype.itemsize()));
  }
  // The segment stays mapped while the process lives unless free() is told that no array is left.
  return py::array(dtype, {static_cast<py::ssize_t>(n)}, {dtype.itemsize()}, memory,
                   py::capsule(memory, [](void*) {}));
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const paropt::TimedOut& error) {
    raise_as("CollectiveTimeout", error.what(), false);
  } catch (const paropt::Mismatch& error) {
    raise_as("CollectiveMismatch", error.what(), true);
  }
}

std::shared_ptr<paropt::Lane> make_lane(const py::int_& comm, const py::object& across,
                                        std::shared_ptr<paropt::SharedGroup> group,
                                        std::size_t segment_bytes, std::size_t max_count,
                                        double timeout, int leaders, std::string elsewhere,
                                        bool background) {
  const MPI_Comm between = across.is_none() ? MPI_COMM_NULL : communicator(py::int_(across));
  return std::make_shared<paropt::Lane>(
      communicator(comm), between, std::move(group),
      paropt::LaneOptions{segment_bytes, max_count, timeout, leaders, std::move(elsewhere),
                          background});
}

void bind_groups(py::module_& m) {
  using paropt::SharedGroup;
  py::class_<SharedGroup, std::shared_ptr<SharedGroup>>(m, "SharedGroup")
      .def(py::init([](const py::int_& node, std::vector<int> ranks,
                       std::vector<std::string> operations) {
             return std::make_shared<SharedGroup>(communicator(node), std::move(ranks),
                                                  std::move(operations));
           }),
           py::arg("node_handle"), py::arg("ranks"), py::arg("operations"))
      .def("allocate", &group_allocate, py::arg("n"), py::arg("dtype"))
      .def("free", &SharedGroup::free, py::arg("buffers"), py::call_guard<py::gil_scoped_release>())
      .def("fail", &SharedGroup::fail)
      .def("enter", &SharedGroup::enter, py::arg("operation"))
      .def("leave", &SharedGroup::leave)
      .def("missing", &SharedGroup::missing)
      .def("memory", &SharedGroup::memory);
}

void bind_lanes(py::module_& m) {
  using paropt::Job;
  using paropt::Lane;
  using paropt::ProgressThread;
  py::class_<Lane, std::shared_ptr<Lane>>(m, "Lane")
      .def(py::init(&make_lane), py::arg("comm_handle"), py::arg("across_handle"), py::arg("group"),
           py::arg("segment_bytes"), py::arg("max_count"), py::arg("timeout"), py::arg("leaders"),
           py::arg("elsewhere"), py::arg("background"))
      .def("allreduce", &lane_allreduce, py::arg("algorithm"), py::arg("buffer"), py::arg("out"),
           py::arg("op"), "Reduce `buffer` into `out`; return the bytes sent through MPI.")
      .def("gather", &lane_gather, py::arg("own"), py::arg("out"),
           "Gather the bytes of all ranks, equally many, into the rows of `out`.")
      .def("share", &lane_share, py::arg("own"),
           "Return the bytes of every rank, read-only, in memory that the next call overwrites.")
      .def_property_readonly("short_allreduce", &lane_short)
      .def_readwrite("short_bytes", &Lane::short_bytes)
      .def("cancel", &Lane::cancel)
      .def("explain", &Lane::explain, py::arg("reason"))
      .def("memory", &Lane::memory)
      .def("waited", &Lane::waited)
      .def(
          "flat_bytes", [](const Lane& lane) { return lane.shared().flat_bytes(); },
          "Of the longest vector reduced in one wait.")
      .def("take_traffic", &lane_traffic,
           "Calls, bytes sent and received, seconds, those waited; since the last time.");
  py::class_<Job, std::shared_ptr<Job>>(m, "Job")
      .def("done", &Job::done)
      .def("wait", &Job::wait, py::call_guard<py::gil_scoped_release>(),
           "Wait for the end; return the bytes sent through MPI.");
  py::class_<ProgressThread>(m, "ProgressThread")
      .def(py::init<>())
      .def("start", &progress_start, py::arg("lane"), py::arg("algorithm"), py::arg("buffer"),
           py::arg("out"), py::arg("op"))
      .def("stop", &ProgressThread::stop, py::call_guard<py::gil_scoped_release>());
}

// ---- neighbour exchange -----------------------------------------------------------------------

template <class T>
using Array = py::array_t<T, py::array::c_style>;

template <class T>
double neighbor_exchange(const py::int_& comm_handle, const Array<T>& in, Array<T> out,
                         const std::vector<int>& targets, const std::vector<int>& sources,
                         double own_weight, const std::vector<double>& weights, std::size_t segment,
                         Array<T> workspace, double timeout) {
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
  paropt::Waiting waiting;
  waiting.timeout = timeout;
  paropt::neighbor_exchange(comm, from, to, n, {targets, sources, weights, own_weight}, segment,
                            scratch, &waiting);
  return waiting.seconds;
}

template <class T>
void bind_neighbor_exchange(py::module_& m) {
  m.def("neighbor_exchange", &neighbor_exchange<T>, py::arg("comm_handle"),
        py::arg("in_").noconvert(), py::arg("out").noconvert(), py::arg("targets"),
        py::arg("sources"), py::arg("own_weight"), py::arg("weights"), py::arg("segment"),
        py::arg("workspace").noconvert(), py::arg("timeout"),
        "Mix a float32 or float64 buffer with those of the sources; return the seconds waited.");
}

}  // namespace

PYBIND11_MODULE(_mpi, m, py::mod_gil_not_used()) {
  m.doc() = "Collectives over MPI; import mpi4py.MPI first, which starts MPI.";
  m.def("built_with", &built_with, "Name and version of the MPI this module was compiled against.");
  m.def("mpi_initialized", &mpi_initialized,
        "Whether MPI is running, as the MPI library of this module sees it.");
  m.def("set_bfloat16", [](const py::dtype& dtype) { bfloat16_number = dtype.num(); });
  m.def("isa", [] { return paropt::isa_name(paropt::isa()); });
  m.def("set_isa", &set_isa, py::arg("name"), "Choose an instruction set; meant for tests.");
  py::register_exception_translator(&translate);
  bind_groups(m);
  bind_lanes(m);
  bind_neighbor_exchange<float>(m);
  bind_neighbor_exchange<double>(m);
}
