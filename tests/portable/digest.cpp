// Prints a digest of what the kernels compute from fixed inputs, so that two machines can be
// compared: the bits must be the same everywhere. `make portable` compares this one with aarch64.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common.hpp"
#include "index_codec.hpp"
#include "message.hpp"
#include "quantize.hpp"
#include "reduce.hpp"
#include "sgd.hpp"
#include "topk.hpp"

namespace {

constexpr std::size_t kEntries = 40000, kMost = 2000;

std::uint32_t digest = 0;

template <class U>
void take(const std::vector<U>& list) {
  digest = paropt::crc32(reinterpret_cast<const std::uint8_t*>(list.data()),
                         list.size() * sizeof(U), digest);
}

// Bit patterns of any kind but NaN, whose sum may differ, and small ones that tie.
template <class T>
std::vector<T> numbers(std::uint64_t seed) {
  using Key = paropt::KeyOf<T>;
  std::vector<T> list(kEntries);
  for (std::size_t i = 0; i < list.size(); ++i) {
    seed = seed * 6364136223846793005 + 1442695040888963407;  // Knuth's MMIX
    Key bits = static_cast<Key>(seed >> (64 - 8 * sizeof(Key)));
    if ((bits & paropt::FloatBits<T>::kMagnitude) >= paropt::FloatBits<T>::kInfinity) bits = 0;
    if (i % 3 == 0) bits = static_cast<Key>(paropt::FloatBits<T>::kInfinity / 2 + seed % 7);
    std::memcpy(&list[i], &bits, sizeof bits);
  }
  return list;
}

template <class T>
std::vector<std::uint32_t> check_topk() {
  std::vector<std::uint32_t> indices(kMost);
  std::vector<T> values(kMost), residual = numbers<T>(2);
  const std::vector<T> gradient = numbers<T>(1);
  paropt::Hint hint{};
  for (int step = 0; step < 3; ++step) {
    paropt::topk<T, std::uint32_t>(gradient.data(), residual.data(), kEntries, kMost,
                                   indices.data(), values.data(), &hint);
    take(indices), take(values), take(residual);
  }
  return indices;
}

void check_codecs(const std::vector<std::uint32_t>& indices, const std::vector<float>& values) {
  using paropt::Codec;
  for (const Codec codec : {Codec::rice, Codec::bitmap, Codec::elias_fano, Codec::raw}) {
    const auto type = paropt::ValueType::float32;
    std::vector<std::uint8_t> bytes(paropt::max_message_bytes(kEntries, kMost, codec, type));
    const std::size_t size = paropt::encode_message(indices.data(), values.data(), kMost, kEntries,
                                                    codec, type, bytes.data());
    bytes.resize(size);
    take(bytes);
    std::vector<float> dense(kEntries);
    paropt::decode_add_message(bytes.data(), size, kEntries, 0.5f, dense.data());
    for (std::size_t i = 0; i < kMost; ++i) {
      if (dense[indices[i]] != 0.5f * values[i]) std::abort();
    }
  }
}

void check_values(const std::vector<float>& values) {
  for (int type = 3; type <= paropt::kValueTypes; ++type) {
    const auto as = static_cast<paropt::ValueType>(type);
    std::vector<std::uint8_t> bytes(paropt::value_bytes(as, kMost));
    std::vector<float> residual(kMost, 0.25f), back(kMost);
    paropt::quantize(as, values.data(), residual.data(), kMost, 7, bytes.data());
    paropt::dequantize(as, bytes.data(), kMost, 0, kMost, back.data());
    take(bytes), take(residual), take(back);
  }
}

void check_sgd(const std::vector<float>& gradient) {
  std::vector<float> params(kMost, 0.7f), velocity(kMost, -0.3f);
  paropt::sgd_step<float>(params.data(), gradient.data(), velocity.data(), kMost,
                          {0.1f, 0.9f, 1e-3f, true});
  paropt::sgd_step<float>(params.data(), gradient.data(), nullptr, kMost, {0.1f, 0, 1e-3f, false});
  take(params), take(velocity);
}

}  // namespace

int main() {
  std::vector<float> values(kMost);
  for (std::size_t i = 0; i < kMost; ++i) values[i] = static_cast<float>(i * i % 977) - 488.25f;
  check_topk<double>();
  check_topk<paropt::Float16>();
  check_topk<paropt::BFloat16>();
  check_codecs(check_topk<float>(), values);
  check_values(values);
  check_sgd(values);
  std::printf("%08x\n", static_cast<unsigned>(digest));
}
