// Python bindings of the CPU kernels: GIL release and the checks without which a call could crash,
// no loops. The Python layer above checks the same with texts that name the remedy.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "common.hpp"
#include "index_codec.hpp"
#include "message.hpp"
#include "reduce.hpp"
#include "topk.hpp"

namespace py = pybind11;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Bytes = Array<std::uint8_t>;

void require(bool fine, const char* what) {
  if (!fine) throw py::value_error(what);
}

template <class T>
const T* input(const Array<T>& array) {
  require(array.ndim() == 1, "arrays must have one dimension");
  require(reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) == 0,
          "arrays must be aligned");
  return array.data();
}

template <class T>
T* output(Array<T>& array, std::size_t least) {
  input(array);
  require(static_cast<std::size_t>(array.size()) >= least, "output array is too short");
  return array.mutable_data();  // throws when read-only
}

template <class T>
std::size_t length(const Array<T>& array) {
  return static_cast<std::size_t>(array.size());
}

void require_counts(std::uint64_t n, std::uint64_t k) {
  require(k <= n && n <= paropt::kMaxEntries, "k and n must have k <= n <= 2^40");
}

template <class I>
void require_index_type(std::uint64_t n) {
  require(sizeof(I) == 8 || n <= std::uint64_t{1} << 32,
          "n must be at most 2^32 for uint32 indices");
}

paropt::Codec codec_of(int id) {
  require(id == 1 || id == 2, "codec must be 1 or 2");
  return static_cast<paropt::Codec>(id);
}

// Run a kernel without the GIL.
template <class Call>
auto unlocked(Call call) {
  const py::gil_scoped_release release;
  return call();
}

template <class T, class I>
std::size_t topk(const Array<T>& gradient, std::optional<Array<T>>& residual, std::size_t k,
                 Array<I>& indices, Array<T>& values) {
  const std::size_t n = length(gradient);
  require_counts(n, k);
  require_index_type<I>(n);
  require(!residual || length(*residual) == n, "residual must be as long as gradient");
  const T* g = input(gradient);
  T* r = residual ? output(*residual, n) : nullptr;
  I* i = output(indices, k);
  T* v = output(values, k);
  return unlocked([=] { return paropt::topk(g, r, n, k, i, v); });
}

template <class T>
void add(Array<T>& out, const Array<T>& array) {
  const std::size_t n = length(array);
  require(length(out) == n, "out and array must have the same length");
  T* o = output(out, n);
  const T* a = input(array);
  unlocked([=] { paropt::add(o, a, n); });
}

template <class T, class I>
void scatter_add(Array<T>& dense, const Array<I>& indices, const Array<T>& values, T scale) {
  const std::size_t n = length(dense), k = length(indices);
  require(length(values) == k, "indices and values must have the same length");
  T* d = output(dense, n);
  const I* i = input(indices);
  const T* v = input(values);
  unlocked([=] { paropt::scatter_add(d, n, i, v, k, scale); });
}

std::uint64_t max_encoded_bytes(std::uint64_t n, std::uint64_t k, int codec) {
  require_counts(n, k);
  return paropt::max_encoded_bytes(n, k, codec_of(codec));
}

int choose_codec(std::uint64_t n, std::uint64_t k) {
  require_counts(n, k);
  return static_cast<int>(paropt::choose_codec(n, k));
}

template <class I>
std::size_t encode_indices(const Array<I>& indices, std::uint64_t n, int codec, Bytes& out) {
  const std::size_t k = length(indices);
  require_index_type<I>(n);
  const I* i = input(indices);
  std::uint8_t* o = output(out, max_encoded_bytes(n, k, codec));
  const paropt::Codec c = codec_of(codec);
  return unlocked([=] { return paropt::encode_indices(i, k, n, c, o); });
}

template <class I>
void decode_indices(const Bytes& data, std::uint64_t n, int codec, Array<I>& out) {
  const std::size_t size = length(data), k = length(out);
  require_counts(n, k);
  require_index_type<I>(n);
  const std::uint8_t* d = input(data);
  I* o = output(out, k);
  const paropt::Codec c = codec_of(codec);
  unlocked([=] { paropt::decode_indices(d, size, n, k, c, o); });
}

void validate_indices(const Bytes& data, std::uint64_t n, std::size_t k, int codec) {
  require_counts(n, k);
  const std::uint8_t* d = input(data);
  const std::size_t size = length(data);
  const paropt::Codec c = codec_of(codec);
  unlocked([=] { paropt::validate_indices(d, size, n, k, c); });
}

template <class T, class I>
std::size_t encode_message(const Array<I>& indices, const Array<T>& values, std::uint64_t n,
                           int codec, Bytes& out) {
  const std::size_t k = length(indices);
  require(length(values) == k, "indices and values must have the same length");
  require_counts(n, k);
  require_index_type<I>(n);
  const paropt::Codec c = codec_of(codec);
  const I* i = input(indices);
  const T* v = input(values);
  std::uint8_t* o = output(out, paropt::max_message_bytes(n, k, c, paropt::ValueTypeOf<T>::value));
  return unlocked([=] { return paropt::encode_message(i, v, k, n, c, o); });
}

py::tuple read_header(const Bytes& data) {
  const paropt::MessageHeader h = paropt::read_header(input(data), length(data));
  return py::make_tuple(h.version, static_cast<int>(h.codec), static_cast<int>(h.value_type), h.n,
                        h.k, h.index_bytes, h.checksum);
}

template <class T, class I>
void decode_message(const Bytes& data, Array<I>& indices, Array<T>& values) {
  const std::uint8_t* d = input(data);
  const std::size_t size = length(data);
  const paropt::MessageHeader header = paropt::read_header(d, size);
  require(header.value_type == paropt::ValueTypeOf<T>::value,
          "values must have the message's type");
  require_index_type<I>(header.n);
  I* i = output(indices, header.k);
  T* v = output(values, header.k);
  unlocked([=] {
    paropt::verify_message(d, size, header);
    paropt::decode_message(d, header, i, v);
  });
}

template <class T>
void decode_add_message(const Bytes& data, Array<T>& dense, T scale) {
  const std::uint8_t* d = input(data);
  const std::size_t size = length(data), n = length(dense);
  T* out = output(dense, n);
  unlocked([=] { paropt::decode_add_message(d, size, n, scale, out); });
}

std::uint32_t crc32(const Bytes& data) {
  const std::uint8_t* d = input(data);
  const std::size_t size = length(data);
  return unlocked([=] { return paropt::crc32(d, size); });
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const paropt::Isa isa : paropt::kIsas) {
    if (paropt::isa_supported(isa)) names.emplace_back(paropt::isa_name(isa));
  }
  return names;
}

void set_isa(const std::string& name) {
  for (const paropt::Isa isa : paropt::kIsas) {
    if (name == paropt::isa_name(isa)) return paropt::set_isa(isa);
  }
  throw py::value_error("isa must be baseline, avx2 or avx512, got " + name);
}

void set_openmp_threads(int threads) {
  require(threads >= 1, "threads must be at least 1");
  paropt::set_openmp_threads(threads);
}

void translate_format_error(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const paropt::FormatError& error) {
    const py::object type = py::module_::import("paropt_hpc.errors").attr("MessageError");
    py::set_error(type, error.what());
  }
}

template <class T, class I>
void define_for_pair(py::module_& m) {
  m.def("topk", &topk<T, I>, py::arg("gradient").noconvert(), py::arg("residual").noconvert(),
        py::arg("k"), py::arg("indices").noconvert(), py::arg("values").noconvert());
  m.def("scatter_add", &scatter_add<T, I>, py::arg("dense").noconvert(),
        py::arg("indices").noconvert(), py::arg("values").noconvert(), py::arg("scale"));
  m.def("encode_message", &encode_message<T, I>, py::arg("indices").noconvert(),
        py::arg("values").noconvert(), py::arg("n"), py::arg("codec"), py::arg("out").noconvert());
  m.def("decode_message", &decode_message<T, I>, py::arg("data").noconvert(),
        py::arg("indices").noconvert(), py::arg("values").noconvert());
}

template <class T>
void define_for_value(py::module_& m) {
  m.def("add", &add<T>, py::arg("out").noconvert(), py::arg("array").noconvert());
  m.def("decode_add_message", &decode_add_message<T>, py::arg("data").noconvert(),
        py::arg("dense").noconvert(), py::arg("scale"));
  define_for_pair<T, std::uint32_t>(m);
  define_for_pair<T, std::uint64_t>(m);
}

template <class I>
void define_for_index(py::module_& m) {
  m.def("encode_indices", &encode_indices<I>, py::arg("indices").noconvert(), py::arg("n"),
        py::arg("codec"), py::arg("out").noconvert());
  m.def("decode_indices", &decode_indices<I>, py::arg("data").noconvert(), py::arg("n"),
        py::arg("codec"), py::arg("out").noconvert());
}

}  // namespace

PYBIND11_MODULE(_native, m, py::mod_gil_not_used()) {
  m.doc() = "CPU kernels; use them through paropt_hpc.kernels.";
  py::register_local_exception_translator(&translate_format_error);
  m.def(
      "isa", [] { return std::string(paropt::isa_name(paropt::isa())); },
      "Name of the instruction set in use.");
  m.def("isas", &isas, "Names of those that this processor supports.");
  m.def("set_isa", &set_isa, py::arg("name"), "Choose one for all threads.");
  m.def("openmp_threads", &paropt::openmp_max_threads, "Threads per kernel; 1 without OpenMP.");
  m.def("set_openmp_threads", &set_openmp_threads, py::arg("threads"),
        "Set the threads of kernels that this thread calls.");
  define_for_value<float>(m);
  define_for_value<double>(m);
  define_for_index<std::uint32_t>(m);
  define_for_index<std::uint64_t>(m);
  m.def("choose_codec", &choose_codec, py::arg("n"), py::arg("k"));
  m.def("max_encoded_bytes", &max_encoded_bytes, py::arg("n"), py::arg("k"), py::arg("codec"));
  m.def("validate_indices", &validate_indices, py::arg("data").noconvert(), py::arg("n"),
        py::arg("k"), py::arg("codec"));
  m.def("read_header", &read_header, py::arg("data").noconvert());
  m.def("crc32", &crc32, py::arg("data").noconvert());
}
