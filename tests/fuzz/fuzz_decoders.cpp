// What a hostile peer can send: libFuzzer finds bytes, AddressSanitizer and UBSan watch the
// decoders.
//
// The first byte chooses the decoder, or an encoder that gets any numbers. Beyond memory safety this
// demands that a decoder accepts or rejects alike, and with the same result, by every instruction
// set; that validation agrees with decoding; that a part is decoded as it is in the whole; and that
// what was accepted survives another round. Build and run it by `make fuzz`.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "common.hpp"
#include "index_codec.hpp"
#include "libsvm.hpp"
#include "message.hpp"
#include "quantize.hpp"

namespace {

using paropt::Codec;
using paropt::Isa;
using paropt::ValueType;

constexpr std::uint64_t kMostEntries = 1 << 16;  // of a dense vector, so that memory stays small

void demand(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// What a call returns, or what it throws, as text.
template <class Call>
std::string outcome(Call call) {
  try {
    return call();
  } catch (const paropt::FormatError& error) {
    return error.what();
  }
}

// Which of two NaNs a sum keeps is up to the compiler, so all are made one.
template <class T>
std::string text(std::vector<T> array) {
  for (T& x : array) x = x == x ? x : std::numeric_limits<T>::quiet_NaN();
  return "accepted " +
         std::string(reinterpret_cast<const char*>(array.data()), array.size() * sizeof(T));
}

bool accepted(const std::string& result) { return result.rfind("accepted ", 0) == 0; }

// Run a decoder by each instruction set and return the result, which must be the same.
template <class Call>
std::string by_each_isa(Call call) {
  std::string first;
  for (const Isa isa : paropt::kIsas) {
    if (!paropt::isa_supported(isa)) continue;
    paropt::set_isa(isa);
    const std::string result = outcome(call);
    if (isa == Isa::baseline) first = result;
    demand(result == first, "instruction sets disagree");
  }
  return first;
}

template <class I>
void fuzz_indices(const std::uint8_t* data, std::size_t size, std::uint64_t n, std::size_t k,
                  Codec codec) {
  std::vector<I> indices(k);
  const std::string result = by_each_isa([&] {
    paropt::decode_indices(data, size, n, k, codec, indices.data());
    return text(indices);
  });
  const std::string valid = by_each_isa([&] {
    paropt::validate_indices(data, size, n, k, codec);
    return std::string("accepted ");
  });
  demand(accepted(result) == accepted(valid), "validation and decoding disagree");
  if (!accepted(result)) return;
  std::vector<std::uint8_t> again(paropt::max_encoded_bytes(n, k, codec));
  again.resize(paropt::encode_indices(indices.data(), k, n, codec, again.data()));
  std::vector<I> twice(k);
  paropt::decode_indices(again.data(), again.size(), n, k, codec, twice.data());
  demand(indices == twice, "a round trip changes the indices");
}

void fuzz_codec(const std::uint8_t* data, std::size_t size) {
  if (size < 16) return;
  const auto codec = static_cast<Codec>(1 + data[0] % paropt::kCodecs);
  const std::uint64_t n = paropt::load<std::uint64_t>(data + 1) % (paropt::kMaxEntries + 1);
  if (codec == Codec::bitmap && n > kMostEntries) return;
  const std::size_t k = std::min<std::uint64_t>(paropt::load<std::uint32_t>(data + 9) % 5000, n);
  // In memory of its own, so that reading one byte too many is seen.
  const std::vector<std::uint8_t> bytes(data + 16, data + size);
  if (n <= std::uint64_t{1} << 32 && data[13] % 2 == 0) {
    fuzz_indices<std::uint32_t>(bytes.data(), bytes.size(), n, k, codec);
  } else {
    fuzz_indices<std::uint64_t>(bytes.data(), bytes.size(), n, k, codec);
  }
}

// An accepted message, encoded anew, decodes to the same. The bytes may differ: a block may be
// encoded with any parameter.
template <class T>
void encode_again(const std::vector<std::uint8_t>& bytes) {
  const paropt::MessageHeader header = paropt::read_header(bytes.data(), bytes.size());
  std::vector<std::uint64_t> indices(header.k), twice(header.k);
  std::vector<T> values(header.k), again(header.k);
  paropt::decode_message(bytes.data(), header, indices.data(), values.data());
  const std::uint64_t at = bytes.size() - paropt::value_bytes(header.value_type, header.k);
  std::vector<std::uint8_t> out(paropt::needed_message_bytes(
      indices.data(), header.k, header.n, header.codec, 0, header.value_type));
  out.resize(paropt::encode_message(indices.data(), bytes.data() + at, header.k, header.n,
                                    header.codec, header.value_type, out.data()));
  const paropt::MessageHeader head = paropt::read_header(out.data(), out.size());
  paropt::verify_message(out.data(), out.size(), head);
  paropt::decode_message(out.data(), head, twice.data(), again.data());
  demand(indices == twice && text(values) == text(again), "a round trip changes a message");
}

// A message added to itself, as a dense vector and as merged entries.
template <class T>
std::string summed_twice(const std::vector<std::uint8_t>& bytes, std::size_t n) {
  const paropt::MessageBytes message = {bytes.data(), bytes.size()}, both[] = {message, message};
  const std::size_t room = 2 * n;
  std::vector<std::uint64_t> indices(room), places(room);
  std::vector<T> values(room), sums(room), dense(n), scattered(n);
  paropt::decode_sum_messages(both, 2, n, T{1}, indices.data(), values.data(), room, dense.data());
  const std::size_t found = paropt::decode_merge_messages(
      both, 2, n, indices.data(), values.data(), room, places.data(), sums.data());
  for (std::size_t i = 0; i < found; ++i) {
    demand(places[i] < n && (i == 0 || places[i] > places[i - 1]), "merged entries do not ascend");
    demand(sums[i] != 0, "a merged entry is zero");
    scattered[places[i]] = sums[i];
  }
  demand(text(scattered) == text(dense), "merged entries are not the sum");
  return text(dense);
}

template <class T>
void fuzz_message(const std::vector<std::uint8_t>& bytes) {
  const std::string result = by_each_isa([&] {
    const paropt::MessageHeader header = paropt::read_header(bytes.data(), bytes.size());
    paropt::verify_message(bytes.data(), bytes.size(), header);
    if ((header.value_type == ValueType::float64) != (sizeof(T) == 8)) {
      throw paropt::FormatError("another type");
    }
    std::vector<std::uint64_t> indices(header.k);
    std::vector<T> values(header.k);
    paropt::decode_message(bytes.data(), header, indices.data(), values.data());
    return text(indices) + text(values);
  });
  if (bytes.size() < paropt::kHeaderBytes) return;
  const std::uint64_t n = paropt::load<std::uint64_t>(bytes.data() + 8);
  if (n > kMostEntries) return;
  std::vector<T> dense(n, T{1});
  const std::string added = by_each_isa([&] {
    dense.assign(n, T{1});
    paropt::decode_add_message(bytes.data(), bytes.size(), n, T{2}, dense.data());
    return text(dense);
  });
  demand(accepted(result) == accepted(added), "decoding and adding disagree");
  if (!accepted(added)) demand(dense == std::vector<T>(n, T{1}), "a bad message was added");
  const std::string summed = by_each_isa([&] { return summed_twice<T>(bytes, n); });
  demand(accepted(summed) == accepted(added), "adding and summing disagree");
  if (accepted(added)) encode_again<T>(bytes);
}

void fuzz_values(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return;
  auto type = static_cast<ValueType>(1 + data[0] % paropt::kValueTypes);
  if (type == ValueType::float64) type = ValueType::float32;
  const std::size_t count = paropt::load<std::uint16_t>(data + 1) % 2000;
  if (size - 4 < paropt::value_bytes(type, count)) return;
  const std::vector<std::uint8_t> bytes(data + 4, data + 4 + paropt::value_bytes(type, count));
  const std::size_t first = count == 0 ? 0 : data[3] * std::size_t{7} % count;
  const std::size_t part = count - first - (count - first) / 3;
  by_each_isa([&] {
    std::vector<float> values(count), some(part);
    paropt::validate_values(type, bytes.data(), count);
    paropt::dequantize(type, bytes.data(), count, 0, count, values.data());
    paropt::dequantize(type, bytes.data(), count, first, part, some.data());
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<float> same(begin, begin + static_cast<std::ptrdiff_t>(part));
    demand(text(some) == text(same), "a part is decoded differently");
    return text(values);
  });
}

// Any floats can be quantised, with any residual; the bytes are valid and finite values stay so.
void fuzz_quantize(const std::uint8_t* data, std::size_t size) {
  if (size < 13) return;
  const auto type = static_cast<ValueType>(3 + data[0] % (paropt::kValueTypes - 2));
  const bool feedback = data[0] >= 128;
  std::vector<float> values((size - 9) / sizeof(float));
  std::memcpy(values.data(), data + 9, values.size() * sizeof(float));
  const std::size_t count = feedback ? values.size() / 2 : values.size();
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    const float acc = feedback ? values[count + i] + values[i] : values[i];
    finite = finite && acc - acc == 0;
  }
  by_each_isa([&] {
    std::vector<float> residual(values.begin() + static_cast<std::ptrdiff_t>(count), values.end());
    std::vector<std::uint8_t> out(paropt::value_bytes(type, count));
    const paropt::QuantizeCounts counts =
        paropt::quantize(type, values.data(), feedback ? residual.data() : nullptr, count,
                         paropt::load<std::uint64_t>(data + 1), out.data());
    demand(finite == (counts.nonfinite == 0), "values that are not finite are miscounted");
    paropt::validate_values(type, out.data(), count);
    std::vector<float> sent(count);
    paropt::dequantize(type, out.data(), count, 0, count, sent.data());
    for (std::size_t i = 0; i < count; ++i) {
      demand(!finite || sent[i] - sent[i] == 0, "a finite value is not finite after decoding");
      demand(!feedback || residual[i] - residual[i] == 0, "a residual is not finite");
    }
    // A half shows which of two NaNs the sum has kept.
    const bool half = type == ValueType::float16 || type == ValueType::bfloat16;
    return (feedback && half ? text(sent) : text(out)) + text(residual);
  });
}

// Any gaps survive a round trip by the codec that `choose_codec` takes, within the bytes promised.
void fuzz_choice(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return;
  std::vector<std::uint32_t> indices;
  std::uint64_t at = 0;
  const unsigned shift = data[0] % 25;
  for (std::size_t i = 1; i < size && at < std::uint64_t{1} << 31; ++i) {
    indices.push_back(static_cast<std::uint32_t>(at));
    at += 1 + (std::uint64_t{data[i]} << (data[i] % 4 == 0 ? shift : 0));
  }
  const std::uint64_t n = indices.back() + std::uint64_t{1} + data[0] / 25;
  by_each_isa([&] {
    const Codec codec = paropt::choose_codec(indices.data(), indices.size(), n);
    std::vector<std::uint8_t> out(paropt::max_chosen_bytes(n, indices.size()));
    out.resize(paropt::encode_indices(indices.data(), indices.size(), n, codec, out.data()));
    std::vector<std::uint32_t> twice(indices.size());
    paropt::decode_indices(out.data(), out.size(), n, twice.size(), codec, twice.data());
    demand(indices == twice, "a round trip changes the indices");
    return text(out);
  });
}

// Any text is parsed within arrays of the room that was counted, up to its end or a fault in it.
void fuzz_libsvm(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> text(data, data + size);  // exactly as long, so that overreads are seen
  const paropt::LibsvmCounts room = paropt::count_libsvm(text.data(), size);
  std::vector<double> labels(room.lines);
  std::vector<std::int64_t> ends(room.lines);
  std::vector<std::int32_t> columns(room.entries);
  std::vector<float> values(room.entries);
  const paropt::LibsvmResult result = paropt::parse_libsvm(
      text.data(), size, 0, labels.data(), ends.data(), columns.data(), values.data());
  demand(result.rows <= room.lines && result.entries <= room.entries, "there is not enough room");
  demand(result.offset <= size, "a fault lies behind the text");
  for (std::size_t i = 0; i < result.entries; ++i) {
    demand(columns[i] >= 0 && values[i] - values[i] == 0, "an entry is out of range");
  }
  demand(result.fault != paropt::LibsvmFault::none || result.offset == size, "text is left over");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const unsigned kind = data[0] % 7;
  if (kind == 0) fuzz_codec(data + 1, size - 1);
  if (kind == 1) fuzz_values(data + 1, size - 1);
  if (kind == 4) fuzz_quantize(data + 1, size - 1);
  if (kind == 5) fuzz_choice(data + 1, size - 1);
  if (kind == 6) fuzz_libsvm(data + 1, size - 1);
  if (kind != 2 && kind != 3) return 0;
  std::vector<std::uint8_t> bytes(data + 1, data + size);
  if (kind == 3 && bytes.size() >= paropt::kHeaderBytes) {
    // An attacker can make the checksum fit; without this hardly an input would get past it.
    const std::uint32_t zero = 0;
    paropt::store(bytes.data() + 32, zero);
    paropt::store(bytes.data() + 32, paropt::crc32(bytes.data(), bytes.size()));
  }
  fuzz_message<float>(bytes);
  fuzz_message<double>(bytes);
  return 0;
}
