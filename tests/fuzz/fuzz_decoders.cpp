// What a hostile peer can send: libFuzzer finds bytes, AddressSanitizer and UBSan watch the
// decoders.
//
// The first byte chooses the decoder. Beyond memory safety this demands that a decoder accepts or
// rejects alike, and with the same result, by every instruction set; that validation agrees with
// decoding; and that what was accepted survives another round. Build and run it by `make fuzz`.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "common.hpp"
#include "index_codec.hpp"
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
}

void fuzz_values(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return;
  auto type = static_cast<ValueType>(1 + data[0] % paropt::kValueTypes);
  if (type == ValueType::float64) type = ValueType::float32;
  const std::size_t count = paropt::load<std::uint16_t>(data + 1) % 2000;
  if (size - 4 < paropt::value_bytes(type, count)) return;
  const std::vector<std::uint8_t> bytes(data + 4, data + 4 + paropt::value_bytes(type, count));
  by_each_isa([&] {
    std::vector<float> values(count);
    paropt::validate_values(type, bytes.data(), count);
    paropt::dequantize(type, bytes.data(), count, 0, count, values.data());
    return text(values);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const unsigned kind = data[0] % 4;
  if (kind == 0) fuzz_codec(data + 1, size - 1);
  if (kind == 1) fuzz_values(data + 1, size - 1);
  if (kind < 2) return 0;
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
