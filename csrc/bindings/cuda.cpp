// Python bindings of the CUDA kernels: GIL release and the device that the arrays are on, no loops.
//
// Arrays come as addresses in device memory, 0 for none: paropt_hpc/kernels/cuda.py has checked
// them, and nobody else calls these functions. The letter of a NumPy dtype names the type of an
// array.

#include <cuda_runtime.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common.hpp"
#include "device.hpp"
#include "index_codec.cuh"
#include "message.cuh"
#include "quantize.cuh"
#include "reduce.cuh"
#include "topk.cuh"

namespace py = pybind11;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Make the device of some memory the current one, without the GIL, and the one before it again at
// the end.
class OnDevice {
 public:
  explicit OnDevice(Address memory) : before_(paropt::current_device()) {
    const int device = paropt::device_of(at<void>(memory));
    if (device != before_) paropt::set_device(device);
  }
  ~OnDevice() {
    try {
      paropt::set_device(before_);
    } catch (const std::runtime_error&) {  // the next call says so
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  py::gil_scoped_release release_;
  int before_;
};

Address allocate(std::size_t bytes, int device) {
  const int before = paropt::current_device();
  paropt::set_device(device);
  void* memory = paropt::allocate(bytes);
  paropt::set_device(before);
  return reinterpret_cast<Address>(memory);
}

// Call f with a null pointer of the type that a letter names.
template <class F>
auto with_float(char letter, F f) {
  if (letter == 'f') return f(static_cast<float*>(nullptr));
  if (letter == 'd') return f(static_cast<double*>(nullptr));
  if (letter == 'e') return f(static_cast<paropt::Float16*>(nullptr));
  if (letter == 'E') return f(static_cast<paropt::BFloat16*>(nullptr));
  throw py::type_error(std::string("no float type: ") + letter);
}

template <class F>
auto with_index(bool wide, F f) {
  return wide ? f(static_cast<std::uint64_t*>(nullptr)) : f(static_cast<std::uint32_t*>(nullptr));
}

template <class F>
auto with_value(char letter, F f) {
  return letter == 'd' ? f(static_cast<double*>(nullptr)) : f(static_cast<float*>(nullptr));
}

template <class T>
using Pointee = std::remove_pointer_t<T>;

std::size_t topk_workspace(char type, bool wide, std::size_t n, std::size_t k) {
  return with_float(type, [=](auto* t) {
    return with_index(wide, [=](auto* i) {
      return paropt::cuda::topk_workspace<Pointee<decltype(t)>, Pointee<decltype(i)>>(n, k);
    });
  });
}

std::size_t topk(char type, bool wide, Address gradient, Address residual, std::size_t n,
                 std::size_t k, Address indices, Address values, Address workspace,
                 Address stream) {
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_float(type, [=](auto* t) {
    with_index(wide, [=](auto* i) {
      using T = Pointee<decltype(t)>;
      using I = Pointee<decltype(i)>;
      paropt::cuda::topk(at<const T>(gradient), at<T>(residual), n, k, at<I>(indices),
                         at<T>(values), at<void>(workspace), s);
    });
  });
  return paropt::cuda::topk_nonfinite(at<void>(workspace), s);
}

std::pair<std::size_t, std::size_t> reach_count(char type, Address gradient, Address residual,
                                                std::size_t n, std::uint64_t key, Address workspace,
                                                Address stream) {
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_float(type, [=](auto* t) {
    using T = Pointee<decltype(t)>;
    paropt::cuda::reach_count<T, std::uint32_t>(at<const T>(gradient), at<T>(residual), n, key,
                                                at<void>(workspace), s);
  });
  return {paropt::cuda::reach_found(at<void>(workspace), s),
          paropt::cuda::topk_nonfinite(at<void>(workspace), s)};
}

void reach_take(char type, bool wide, Address acc, bool clear, std::size_t n, std::uint64_t key,
                std::size_t k, Address indices, Address values, Address workspace, Address stream) {
  const OnDevice device(workspace);
  with_float(type, [=](auto* t) {
    with_index(wide, [=](auto* i) {
      using T = Pointee<decltype(t)>;
      using I = Pointee<decltype(i)>;
      paropt::cuda::reach_take(at<const T>(acc), at<T>(clear ? acc : 0), n, key, k, at<I>(indices),
                               at<T>(values), at<void>(workspace), at<CUstream_st>(stream));
    });
  });
}

void add(char type, Address out, Address array, std::size_t n, Address stream) {
  if (n == 0) return;
  const OnDevice device(out);
  with_value(type, [=](auto* t) {
    using T = Pointee<decltype(t)>;
    paropt::cuda::add(at<T>(out), at<const T>(array), n, at<CUstream_st>(stream));
  });
}

void scatter_add(char type, bool wide, Address dense, std::size_t n, Address indices,
                 Address values, std::size_t k, double scale, Address workspace, Address stream) {
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_value(type, [=](auto* t) {
    with_index(wide, [=](auto* i) {
      using T = Pointee<decltype(t)>;
      using I = Pointee<decltype(i)>;
      paropt::cuda::scatter_add(at<T>(dense), n, at<const I>(indices), at<const T>(values), k,
                                static_cast<T>(scale), at<void>(workspace), s);
    });
  });
  paropt::cuda::check_scatter(at<void>(workspace), s);
}

// Of a sparse vector: addresses of indices and values, and how many they are.
using SparseAddresses = std::tuple<Address, Address, std::size_t>;

void scatter_sum(char type, bool wide, Address dense, std::size_t n,
                 const std::vector<SparseAddresses>& vectors, double scale, Address workspace,
                 Address stream) {
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_value(type, [&](auto* t) {
    with_index(wide, [&](auto* i) {
      using T = Pointee<decltype(t)>;
      using I = Pointee<decltype(i)>;
      std::vector<paropt::Sparse<T, I>> parts;
      for (const auto& [indices, values, k] : vectors) {
        parts.push_back({at<const I>(indices), at<const T>(values), k});
      }
      paropt::cuda::scatter_sum(at<T>(dense), n, parts.data(), parts.size(), static_cast<T>(scale),
                                at<void>(workspace), s);
    });
  });
  paropt::cuda::check_scatter(at<void>(workspace), s);
}

paropt::Codec codec_of(int id) {
  if (id < 1 || id > paropt::kCodecs) throw py::value_error("codec must be from 1 to 5");
  return static_cast<paropt::Codec>(id);
}

paropt::ValueType value_type_of(int id) {
  if (id < 1 || id > paropt::kValueTypes) throw py::value_error("value type must be from 1 to 7");
  return static_cast<paropt::ValueType>(id);
}

std::size_t codec_workspace(std::uint64_t n, std::size_t k, int codec) {
  return paropt::cuda::codec_workspace(n, k, codec_of(codec));
}

std::uint64_t rice_bytes(bool wide, Address indices, std::size_t k, std::uint64_t n,
                         Address workspace, Address stream) {
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_index(wide, [=](auto* i) {
    using I = Pointee<decltype(i)>;
    paropt::cuda::plan_rice(at<const I>(indices), k, n, at<void>(workspace), s);
  });
  return paropt::cuda::rice_bytes(at<void>(workspace), s);
}

std::uint64_t encode_indices(bool wide, Address indices, std::size_t k, std::uint64_t n, int codec,
                             Address out, Address workspace, Address stream) {
  const paropt::Codec c = codec_of(codec);
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_index(wide, [=](auto* i) {
    using I = Pointee<decltype(i)>;
    paropt::cuda::encode_indices(at<const I>(indices), k, n, c, at<std::uint8_t>(out),
                                 at<void>(workspace), s);
  });
  return paropt::cuda::encoded_bytes(at<void>(workspace), s);
}

void decode_indices(bool wide, Address data, std::size_t size, std::uint64_t n, std::size_t k,
                    int codec, Address out, Address workspace, Address stream) {
  const paropt::Codec c = codec_of(codec);
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_index(wide, [=](auto* i) {
    using I = Pointee<decltype(i)>;
    paropt::cuda::decode_indices(at<const std::uint8_t>(data), size, n, k, c, at<I>(out),
                                 at<void>(workspace), s);
  });
  paropt::cuda::check_decoded(at<void>(workspace), s);
}

void validate_indices(Address data, std::size_t size, std::uint64_t n, std::size_t k, int codec,
                      Address workspace, Address stream) {
  const paropt::Codec c = codec_of(codec);
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  paropt::cuda::validate_indices(at<const std::uint8_t>(data), size, n, k, c, at<void>(workspace),
                                 s);
  paropt::cuda::check_decoded(at<void>(workspace), s);
}

void decode_scatter_add(char type, Address data, std::size_t size, std::uint64_t n, std::size_t k,
                        int codec, int value_type, Address values, double scale, Address dense,
                        Address workspace, Address stream) {
  const paropt::Codec c = codec_of(codec);
  const paropt::ValueType v = value_type_of(value_type);
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  with_value(type, [=](auto* t) {
    using T = Pointee<decltype(t)>;
    paropt::cuda::decode_scatter_add(at<const std::uint8_t>(data), size, n, k, c, v,
                                     at<const std::uint8_t>(values), static_cast<T>(scale),
                                     at<T>(dense), at<void>(workspace), s);
  });
  paropt::cuda::check_decoded(at<void>(workspace), s);
}

std::pair<std::size_t, std::size_t> quantize(Address values, Address residual, std::size_t count,
                                             int type, std::uint64_t seed, Address out,
                                             Address workspace, Address stream) {
  const paropt::ValueType t = value_type_of(type);
  const OnDevice device(workspace);
  const auto s = at<CUstream_st>(stream);
  paropt::cuda::quantize(t, at<const float>(values), at<float>(residual), count, seed,
                         at<std::uint8_t>(out), at<void>(workspace), s);
  const paropt::QuantizeCounts counts = paropt::cuda::quantize_counts(at<void>(workspace), s);
  return {counts.saturated, counts.nonfinite};
}

void dequantize(Address data, int type, std::size_t count, Address out, Address stream) {
  if (count == 0) return;
  const paropt::ValueType t = value_type_of(type);
  const OnDevice device(out);
  paropt::cuda::dequantize(t, at<const std::uint8_t>(data), count, at<float>(out),
                           at<CUstream_st>(stream));
}

void validate_values(Address data, int type, std::size_t count, Address stream) {
  if (count == 0) return;
  const paropt::ValueType t = value_type_of(type);
  const OnDevice device(data);
  paropt::cuda::validate_values(t, at<const std::uint8_t>(data), count, at<CUstream_st>(stream));
}

void crc32(Address data, std::size_t size, std::size_t hole, Address crc, Address stream) {
  const OnDevice device(crc);
  paropt::cuda::crc32(at<const std::uint8_t>(data), size, hole, at<std::uint32_t>(crc),
                      at<CUstream_st>(stream));
}

void copy_to_device(Address to, const py::buffer& from, Address stream) {
  const py::buffer_info info = from.request();
  const auto bytes = static_cast<std::size_t>(info.size * info.itemsize);
  if (bytes == 0) return;
  const OnDevice device(to);
  paropt::copy(at<void>(to), info.ptr, bytes, at<void>(stream));
}

void copy_to_host(const py::buffer& to, Address from, Address stream) {
  const py::buffer_info info = to.request(true);
  const auto bytes = static_cast<std::size_t>(info.size * info.itemsize);
  if (bytes == 0) return;
  const OnDevice device(from);
  paropt::copy(info.ptr, at<void>(from), bytes, at<void>(stream));
}

void copy(Address to, Address from, std::size_t bytes, Address stream) {
  if (bytes == 0) return;
  const OnDevice device(to);
  paropt::copy_on_device(at<void>(to), at<void>(from), bytes, at<void>(stream));
}

void fill(Address to, int value, std::size_t bytes, Address stream) {
  if (bytes == 0) return;
  const OnDevice device(to);
  paropt::fill(at<void>(to), value, bytes, at<void>(stream));
}

// Between pinned memory of the host and a device, in either direction.
void begin_copy(Address to, Address from, std::size_t bytes, Address stream) {
  if (bytes > 0) paropt::begin_copy(at<void>(to), at<void>(from), bytes, at<void>(stream));
}

std::tuple<std::string, int, int, std::size_t, std::string> device_info(int device) {
  const paropt::DeviceInfo info = paropt::device_info(device);
  return {info.name, info.major, info.minor, info.bytes, info.uuid};
}

// Memory of the host for copies, as a buffer of bytes that is freed with its last user.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes)
      : bytes_(bytes), memory_(paropt::allocate_pinned(bytes > 0 ? bytes : 1)) {}
  ~PinnedMemory() {
    try {
      paropt::deallocate_pinned(memory_);
    } catch (const std::runtime_error&) {  // at the end of the process there is no runtime left
    }
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  py::buffer_info buffer() {
    return {static_cast<std::uint8_t*>(memory_), static_cast<py::ssize_t>(bytes_)};
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

void translate_format_error(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const paropt::FormatError& error) {
    const py::object type = py::module_::import("paropt_hpc.errors").attr("MessageError");
    py::set_error(type, error.what());
  }
}

}  // namespace

PYBIND11_MODULE(_cuda, m, py::mod_gil_not_used()) {
  m.doc() = "CUDA kernels; importable without a GPU, which then counts 0 devices.";
  py::register_local_exception_translator(&translate_format_error);
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("device_count", &paropt::device_count, unlocked,
        "Number of CUDA devices, 0 without a GPU or driver.");
  m.def("why_no_device", &paropt::why_no_device, unlocked,
        "Why there is no device, in the runtime's words; empty where there is one.");
  m.def("device_info", &device_info, unlocked, py::arg("device"),
        "Name, compute capability (major, minor), bytes of memory, UUID.");
  m.def("current_device", &paropt::current_device, unlocked);
  m.def("set_device", &paropt::set_device, unlocked, py::arg("device"));
  m.def(
      "device_of", [](Address address) { return paropt::device_of(at<void>(address)); }, unlocked,
      py::arg("address"));
  m.def("allocate", &allocate, unlocked, py::arg("bytes"), py::arg("device"));
  m.def(
      "deallocate", [](Address address) { paropt::deallocate(at<void>(address)); }, unlocked,
      py::arg("address"));
  py::class_<PinnedMemory>(m, "PinnedMemory", py::buffer_protocol())
      .def(py::init<std::size_t>(), py::arg("bytes"))
      .def_buffer(&PinnedMemory::buffer);
  m.def(
      "create_stream",
      [](int device) { return reinterpret_cast<Address>(paropt::create_stream(device)); }, unlocked,
      py::arg("device"), "A stream that waits for no other one.");
  m.def(
      "destroy_stream", [](Address stream) { paropt::destroy_stream(at<void>(stream)); }, unlocked,
      py::arg("stream"));
  m.def("begin_copy", &begin_copy, unlocked, py::arg("to"), py::arg("address"), py::arg("bytes"),
        py::arg("stream"),
        "Copy from or to pinned memory, in order on the stream; return at once.");
  m.def(
      "synchronize", [](Address stream) { paropt::synchronize(at<void>(stream)); }, unlocked,
      py::arg("stream"));
  m.def("copy_to_device", &copy_to_device, py::arg("to"), py::arg("array"), py::arg("stream"));
  m.def("copy_to_host", &copy_to_host, py::arg("array"), py::arg("address"), py::arg("stream"));
  m.def("copy", &copy, py::arg("to"), py::arg("address"), py::arg("bytes"), py::arg("stream"));
  m.def("fill", &fill, py::arg("to"), py::arg("value"), py::arg("bytes"), py::arg("stream"));
  m.def("topk_workspace", &topk_workspace);
  m.def("topk", &topk);
  m.def("reach_count", &reach_count);
  m.def("reach_take", &reach_take);
  m.def("add", &add);
  m.attr("SCATTER_WORKSPACE") = paropt::cuda::kScatterWorkspace;
  m.def("scatter_add", &scatter_add);
  m.def("scatter_sum", &scatter_sum);
  m.def("codec_workspace", &codec_workspace);
  m.def("rice_bytes", &rice_bytes);
  m.def("encode_indices", &encode_indices);
  m.def("decode_indices", &decode_indices);
  m.def("validate_indices", &validate_indices);
  m.def("decode_scatter_add", &decode_scatter_add);
  m.attr("QUANTIZE_WORKSPACE") = paropt::cuda::kQuantizeWorkspace;
  m.def("quantize", &quantize);
  m.def("dequantize", &dequantize);
  m.def("validate_values", &validate_values);
  m.def("crc32", &crc32);
}
