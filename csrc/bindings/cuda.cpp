// Python bindings of the CUDA kernels: argument checks and GIL release, no loops.

#include <pybind11/pybind11.h>

#include <cstdint>

#include "device.hpp"

namespace py = pybind11;

namespace {

// Fill any array that speaks __cuda_array_interface__: contiguous, writable, float32.
void fill(const py::object& array, float value, std::uintptr_t stream) {
  if (!py::hasattr(array, "__cuda_array_interface__")) {
    throw py::type_error("array must have __cuda_array_interface__, got " +
                         py::cast<std::string>(py::str(py::type::of(array))));
  }
  const py::dict interface = array.attr("__cuda_array_interface__");
  const std::string type = py::cast<std::string>(interface["typestr"]);
  if (type != "<f4") throw py::type_error("array must be float32 ('<f4'), got '" + type + "'");
  const auto [pointer, read_only] = py::cast<std::pair<std::uintptr_t, bool>>(interface["data"]);
  if (read_only) throw py::value_error("array must be writable");
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    throw py::value_error("array must be contiguous, got strides; pass a contiguous copy");
  }
  std::size_t n = 1;
  for (const py::handle extent : py::tuple(interface["shape"])) n *= py::cast<std::size_t>(extent);
  py::gil_scoped_release release;
  paropt::fill(reinterpret_cast<float*>(pointer), n, value, reinterpret_cast<void*>(stream));
}

}  // namespace

PYBIND11_MODULE(_cuda, m, py::mod_gil_not_used()) {
  m.doc() = "CUDA kernels; importable without a GPU, which then counts 0 devices.";
  m.def("device_count", &paropt::device_count, py::call_guard<py::gil_scoped_release>(),
        "Number of CUDA devices, 0 without a GPU or driver.");
  m.def("fill", &fill, py::arg("array"), py::arg("value"), py::arg("stream") = 0,
        "Set every entry of a float32 device array, in order on the given stream handle.");
}
