// Python bindings of the CPU kernels: GIL release and the checks without which a call could crash,
// no loops. The Python layer above checks the same with texts that name the remedy.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "common.hpp"
#include "index_codec.hpp"
#include "libsvm.hpp"
#include "message.hpp"
#include "population.hpp"
#include "quantize.hpp"
#include "reduce.hpp"
#include "sgd.hpp"
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
  require(id >= 1 && id <= paropt::kCodecs, "codec must be from 1 to 5");
  return static_cast<paropt::Codec>(id);
}

// Run a kernel without the GIL.
template <class Call>
auto unlocked(Call call) {
  const py::gil_scoped_release release;
  return call();
}

// Arrays whose dtype has no C++ type come as they are: the letter of the dtype tells it.
template <class T>
constexpr char letter() {
  if (std::is_same_v<T, float>) return 'f';
  if (std::is_same_v<T, double>) return 'd';
  if (std::is_same_v<T, paropt::Float16>) return 'e';
  if (std::is_same_v<T, paropt::BFloat16>) return 'E';  // of ml_dtypes
  return sizeof(T) == 4 ? 'I' : 'L';
}

template <class T>
bool holds(const py::array& array) {
  return array.dtype().char_() == letter<T>() && array.dtype().itemsize() == sizeof(T);
}

template <class T>
T* pointer(const py::array& array, std::size_t least, bool writable) {
  require(holds<T>(array), "arrays must have the dtypes that belong together");
  require(array.ndim() == 1 && (array.flags() & py::array::c_style) != 0,
          "arrays must be contiguous and have one dimension");
  require(static_cast<std::size_t>(array.size()) >= least, "array is too short");
  require(!writable || array.writeable(), "array must be writable");
  auto* data = static_cast<T*>(const_cast<void*>(array.data()));
  require(reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0, "arrays must be aligned");
  return data;
}

// Call f with the pointer of a float array.
template <class F>
auto with_floats(const py::array& array, F f) {
  if (holds<float>(array)) return f(pointer<float>(array, 0, false));
  if (holds<double>(array)) return f(pointer<double>(array, 0, false));
  if (holds<paropt::Float16>(array)) return f(pointer<paropt::Float16>(array, 0, false));
  return f(pointer<paropt::BFloat16>(array, 0, false));
}

template <class T, class I>
std::size_t topk_as(const T* gradient, T* residual, std::size_t n, std::size_t k,
                    const py::array& indices, const py::array& values,
                    const std::optional<py::array>& hint) {
  require_index_type<I>(n);
  I* i = pointer<I>(indices, k, true);
  T* v = pointer<T>(values, k, true);
  auto* words = hint ? pointer<std::uint64_t>(*hint, sizeof(paropt::Hint) / 8, true) : nullptr;
  paropt::Hint memory{};
  if (words != nullptr) std::memcpy(&memory, words, sizeof memory);
  const std::size_t nonfinite = unlocked([&] {
    return paropt::topk(gradient, residual, n, k, i, v, words == nullptr ? nullptr : &memory);
  });
  if (words != nullptr) std::memcpy(words, &memory, sizeof memory);
  return nonfinite;
}

template <class T>
T* residual_pointer(const std::optional<py::array>& residual, std::size_t n) {
  require(!residual || static_cast<std::size_t>(residual->size()) == n,
          "residual must be as long as gradient");
  return residual ? pointer<T>(*residual, n, true) : nullptr;
}

std::size_t topk(const py::array& gradient, const std::optional<py::array>& residual, std::size_t k,
                 const py::array& indices, const py::array& values,
                 const std::optional<py::array>& hint) {
  const auto n = static_cast<std::size_t>(gradient.size());
  require_counts(n, k);
  return with_floats(gradient, [&](auto* g) {
    using T = std::remove_pointer_t<decltype(g)>;
    T* r = residual_pointer<T>(residual, n);
    return holds<std::uint32_t>(indices)
               ? topk_as<T, std::uint32_t>(g, r, n, k, indices, values, hint)
               : topk_as<T, std::uint64_t>(g, r, n, k, indices, values, hint);
  });
}

template <class T, class I>
py::tuple reach_as(const T* gradient, T* residual, std::size_t n, paropt::KeyOf<T> bound,
                   const py::dtype& dtype) {
  const paropt::Reach reach =
      unlocked([=] { return paropt::reach_count(gradient, residual, n, bound); });
  py::array_t<I> indices(static_cast<py::ssize_t>(reach.found));
  py::array values(dtype, static_cast<py::ssize_t>(reach.found));
  I* i = indices.mutable_data();
  T* v = static_cast<T*>(values.mutable_data());
  const T* acc = residual == nullptr ? gradient : residual;
  unlocked([=] { paropt::reach_take(acc, residual, n, bound, i, v); });
  return py::make_tuple(indices, values, reach.nonfinite);
}

py::tuple reach(const py::array& gradient, const std::optional<py::array>& residual,
                std::uint64_t key) {
  const auto n = static_cast<std::size_t>(gradient.size());
  return with_floats(gradient, [&](auto* g) {
    using T = std::remove_pointer_t<decltype(g)>;
    T* r = residual_pointer<T>(residual, n);
    const auto bound = static_cast<paropt::KeyOf<T>>(key);
    return n <= std::uint64_t{1} << 32
               ? reach_as<T, std::uint32_t>(g, r, n, bound, gradient.dtype())
               : reach_as<T, std::uint64_t>(g, r, n, bound, gradient.dtype());
  });
}

template <class T>
void add(Array<T>& out, const Array<T>& array) {
  const std::size_t n = length(array);
  require(length(out) == n, "out and array must have the same length");
  T* o = output(out, n);
  const T* a = input(array);
  unlocked([=] { paropt::add(o, a, n); });
}

template <class T>
void sgd_step(Array<T>& params, const Array<T>& gradient, std::optional<Array<T>>& velocity, T rate,
              T momentum, T decay, bool nesterov) {
  const std::size_t n = length(params);
  require(length(gradient) == n, "params and gradient must have the same length");
  require(!velocity || length(*velocity) == n, "params and velocity must have the same length");
  T* p = output(params, n);
  const T* g = input(gradient);
  T* v = velocity ? output(*velocity, n) : nullptr;
  const paropt::SgdStep<T> step{rate, momentum, decay, nesterov};
  unlocked([=, &step] { paropt::sgd_step(p, g, v, n, step); });
}

float read_all(const Array<float>& array) {
  const float* a = input(array);
  const std::size_t n = length(array);
  return unlocked([=] { return paropt::read_all(a, n); });
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

std::uint64_t max_chosen_bytes(std::uint64_t n, std::uint64_t k) {
  require_counts(n, k);
  return paropt::max_chosen_bytes(n, k);
}

template <class I>
int choose_codec(const Array<I>& indices, std::uint64_t n) {
  const std::size_t k = length(indices);
  require_counts(n, k);
  const I* i = input(indices);
  return unlocked([=] { return static_cast<int>(paropt::choose_codec(i, k, n)); });
}

template <class I>
std::size_t encode_indices(const Array<I>& indices, std::uint64_t n, int codec, Bytes& out) {
  const std::size_t k = length(indices);
  require_index_type<I>(n);
  const I* i = input(indices);
  require_counts(n, k);
  const paropt::Codec c = codec_of(codec);
  std::uint8_t* o = output(out, paropt::needed_bytes(i, k, n, c, length(out)));
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

paropt::ValueType value_type_of(int id) {
  require(id >= 1 && id <= paropt::kValueTypes, "value type must be from 1 to 7");
  return static_cast<paropt::ValueType>(id);
}

template <class I>
std::size_t encode_message(const Array<I>& indices, const Bytes& values, std::uint64_t n, int codec,
                           int type, Bytes& out) {
  const std::size_t k = length(indices);
  const paropt::Codec c = codec_of(codec);
  const paropt::ValueType t = value_type_of(type);
  require(length(values) == paropt::value_bytes(t, k), "values must have the bytes of k values");
  require_counts(n, k);
  require_index_type<I>(n);
  const I* i = input(indices);
  const std::uint8_t* v = input(values);
  std::uint8_t* o = output(out, paropt::needed_message_bytes(i, k, n, c, length(out), t));
  return unlocked([=] { return paropt::encode_message(i, v, k, n, c, t, o); });
}

std::size_t encode_full_message(const Bytes& values, std::uint64_t n, int type, Bytes& out) {
  const paropt::ValueType t = value_type_of(type);
  require_counts(n, n);
  require(length(values) == paropt::value_bytes(t, n), "values must have the bytes of n values");
  const std::uint8_t* v = input(values);
  std::uint8_t* o = output(out, paropt::max_message_bytes(n, n, paropt::Codec::full, t));
  return unlocked([=] {
    constexpr const std::uint64_t* kNone = nullptr;
    return paropt::encode_message(kNone, v, n, n, paropt::Codec::full, t, o);
  });
}

py::tuple quantize(const Array<float>& values, std::optional<Array<float>>& residual, int type,
                   std::uint64_t seed, Bytes& out) {
  const std::size_t count = length(values);
  const paropt::ValueType t = value_type_of(type);
  require(type > 2, "value type must be a quantised one");
  require(!residual || length(*residual) == count, "residual must be as long as values");
  const float* v = input(values);
  float* r = residual ? output(*residual, count) : nullptr;
  std::uint8_t* o = output(out, paropt::value_bytes(t, count));
  const paropt::QuantizeCounts counts =
      unlocked([=] { return paropt::quantize(t, v, r, count, seed, o); });
  return py::make_tuple(counts.saturated, counts.nonfinite);
}

void dequantize(const Bytes& data, int type, Array<float>& out) {
  const std::size_t count = length(out);
  const paropt::ValueType t = value_type_of(type);
  require(type != 2, "value type must be one that decodes to float32");
  const std::uint8_t* d = input(data);
  if (length(data) != paropt::value_bytes(t, count)) {
    throw paropt::FormatError(std::to_string(count) + " values must take " +
                              std::to_string(paropt::value_bytes(t, count)) + " bytes, got " +
                              std::to_string(length(data)));
  }
  float* o = output(out, count);
  unlocked([=] {
    paropt::validate_values(t, d, count);
    paropt::dequantize(t, d, count, 0, count, o);
  });
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
  require((header.value_type == paropt::ValueType::float64) == (sizeof(T) == 8),
          "values must have the type that the message decodes to");
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

std::vector<paropt::MessageBytes> parts_of(const std::vector<Bytes>& messages) {
  std::vector<paropt::MessageBytes> parts;
  for (const Bytes& data : messages) parts.push_back({input(data), length(data)});
  return parts;
}

template <class T, class I>
void decode_sum_messages(const std::vector<Bytes>& messages, Array<T>& dense, T scale,
                         Array<I>& indices, Array<T>& values) {
  const auto parts = parts_of(messages);
  const std::size_t n = length(dense), room = length(indices);
  require_index_type<I>(n);
  T* out = output(dense, n);
  I* i = output(indices, room);
  T* v = output(values, room);
  unlocked(
      [&] { paropt::decode_sum_messages(parts.data(), parts.size(), n, scale, i, v, room, out); });
}

template <class T, class I>
std::size_t decode_merge_messages(const std::vector<Bytes>& messages, std::uint64_t n,
                                  Array<I>& indices, Array<T>& values, Array<I>& to_indices,
                                  Array<T>& to_values) {
  const auto parts = parts_of(messages);
  const std::size_t room = length(indices);
  require_index_type<I>(n);
  I* i = output(indices, room);
  T* v = output(values, room);
  I* to_i = output(to_indices, room);
  T* to_v = output(to_values, room);
  return unlocked([&] {
    return paropt::decode_merge_messages(parts.data(), parts.size(), n, i, v, room, to_i, to_v);
  });
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
  m.def("decode_sum_messages", &decode_sum_messages<T, I>, py::arg("messages"),
        py::arg("dense").noconvert(), py::arg("scale"), py::arg("indices").noconvert(),
        py::arg("values").noconvert());
  m.def("decode_merge_messages", &decode_merge_messages<T, I>, py::arg("messages"), py::arg("n"),
        py::arg("indices").noconvert(), py::arg("values").noconvert(),
        py::arg("to_indices").noconvert(), py::arg("to_values").noconvert());
  m.def("scatter_add", &scatter_add<T, I>, py::arg("dense").noconvert(),
        py::arg("indices").noconvert(), py::arg("values").noconvert(), py::arg("scale"));
  m.def("decode_message", &decode_message<T, I>, py::arg("data").noconvert(),
        py::arg("indices").noconvert(), py::arg("values").noconvert());
}

template <class T>
void define_for_value(py::module_& m) {
  m.def("add", &add<T>, py::arg("out").noconvert(), py::arg("array").noconvert());
  m.def("sgd_step", &sgd_step<T>, py::arg("params").noconvert(), py::arg("gradient").noconvert(),
        py::arg("velocity").noconvert(), py::arg("rate"), py::arg("momentum"), py::arg("decay"),
        py::arg("nesterov"));
  m.def("decode_add_message", &decode_add_message<T>, py::arg("data").noconvert(),
        py::arg("dense").noconvert(), py::arg("scale"));
  define_for_pair<T, std::uint32_t>(m);
  define_for_pair<T, std::uint64_t>(m);
}

template <class I>
void define_for_index(py::module_& m) {
  m.def("encode_message", &encode_message<I>, py::arg("indices").noconvert(),
        py::arg("values").noconvert(), py::arg("n"), py::arg("codec"), py::arg("value_type"),
        py::arg("out").noconvert());
  m.def("choose_codec", &choose_codec<I>, py::arg("indices").noconvert(), py::arg("n"));
  m.def("encode_indices", &encode_indices<I>, py::arg("indices").noconvert(), py::arg("n"),
        py::arg("codec"), py::arg("out").noconvert());
  m.def("decode_indices", &decode_indices<I>, py::arg("data").noconvert(), py::arg("n"),
        py::arg("codec"), py::arg("out").noconvert());
}

py::tuple count_libsvm(const Bytes& text) {
  const auto* t = reinterpret_cast<const char*>(input(text));
  const std::size_t size = length(text);
  const auto counts = unlocked([=] { return paropt::count_libsvm(t, size); });
  return py::make_tuple(counts.lines, counts.entries);
}

py::tuple parse_libsvm(const Bytes& text, std::int64_t base, Array<double>& labels,
                       Array<std::int64_t>& ends, Array<std::int32_t>& columns,
                       Array<float>& values) {
  const auto* t = reinterpret_cast<const char*>(input(text));
  const std::size_t size = length(text);
  const auto room = unlocked([=] { return paropt::count_libsvm(t, size); });
  double* l = output(labels, room.lines);
  std::int64_t* e = output(ends, room.lines);
  std::int32_t* c = output(columns, room.entries);
  float* v = output(values, room.entries);
  const auto done = unlocked([=] { return paropt::parse_libsvm(t, size, base, l, e, c, v); });
  return py::make_tuple(done.rows, done.entries, done.offset, static_cast<int>(done.fault));
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
  m.def("entries_per_thread", &paropt::entries_per_thread);
  m.def("set_entries_per_thread", &paropt::set_entries_per_thread, py::arg("entries"));
  m.def("topk", &topk, py::arg("gradient"), py::arg("residual"), py::arg("k"), py::arg("indices"),
        py::arg("values"), py::arg("hint") = py::none());
  m.def("reach", &reach, py::arg("gradient"), py::arg("residual"), py::arg("key"));
  m.def("read_all", &read_all, py::arg("array").noconvert(),
        "Sum an array at the speed of the memory: the floor of whatever reads it once.");
  define_for_value<float>(m);
  define_for_value<double>(m);
  define_for_index<std::uint32_t>(m);
  define_for_index<std::uint64_t>(m);
  m.def("encode_full_message", &encode_full_message, py::arg("values").noconvert(), py::arg("n"),
        py::arg("value_type"), py::arg("out").noconvert());
  m.def("quantize", &quantize, py::arg("values").noconvert(), py::arg("residual").noconvert(),
        py::arg("value_type"), py::arg("seed"), py::arg("out").noconvert());
  m.def("dequantize", &dequantize, py::arg("data").noconvert(), py::arg("value_type"),
        py::arg("out").noconvert());
  m.def("max_chosen_bytes", &max_chosen_bytes, py::arg("n"), py::arg("k"));
  m.def("max_encoded_bytes", &max_encoded_bytes, py::arg("n"), py::arg("k"), py::arg("codec"));
  m.def("validate_indices", &validate_indices, py::arg("data").noconvert(), py::arg("n"),
        py::arg("k"), py::arg("codec"));
  m.def("read_header", &read_header, py::arg("data").noconvert());
  define_population(m);
  m.def("crc32", &crc32, py::arg("data").noconvert());
  m.def("count_libsvm", &count_libsvm, py::arg("text").noconvert());
  m.def("parse_libsvm", &parse_libsvm, py::arg("text").noconvert(), py::arg("base"),
        py::arg("labels").noconvert(), py::arg("ends").noconvert(), py::arg("columns").noconvert(),
        py::arg("values").noconvert());
}
