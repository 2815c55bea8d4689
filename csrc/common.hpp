// Shared by the kernels: the instruction sets and how one is chosen, errors, keys of floats, bytes.
//
// Loops that profit from wide vectors are written once, in a file x_loops.hpp, and compiled for
// every instruction set by foreach_isa.hpp. PAROPT_DISPATCH calls the version for the set in use.
// Nothing is built for the machine at hand only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "half.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define PAROPT_X86 1
#include <immintrin.h>
#else
#define PAROPT_X86 0
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native kernels are little-endian; the NumPy twins serve other machines"
#endif

#define PAROPT_ALWAYS_INLINE inline __attribute__((always_inline))

namespace paropt {

// avx2 is x86-64-v3 without FMA: a fused multiply-add would round differently from the twin.
// avx512 is the set that Ice Lake and Zen 4 brought; older AVX-512 processors take avx2.
enum class Isa { baseline, avx2, avx512 };
constexpr Isa kIsas[] = {Isa::baseline, Isa::avx2, Isa::avx512};

const char* isa_name(Isa isa);
bool isa_supported(Isa isa);

// The set in use by all threads: at first the best supported one. Setting is meant for tests and
// for PAROPT_ISA; while kernels run in other threads it changes their speed, never their results.
Isa isa();
void set_isa(Isa isa);  // throws std::invalid_argument when this processor does not support it

// Threads for a loop over `items` independent items that should get at least `grain` each; 1
// without OpenMP.
int threads_for(std::size_t items, std::size_t grain);

// Threads for a loop over the entries of an array, which is worth one for every
// entries_per_thread(): at first 2^20, since waking a thread that sleeps takes as long as a few
// hundred thousand entries in the cache. Setting it is meant for tests.
int threads_for_entries(std::size_t n);
std::size_t entries_per_thread();
void set_entries_per_thread(std::size_t entries);
int openmp_max_threads();
void set_openmp_threads(int threads);  // for kernels called from this thread
int thread_number();

#if PAROPT_X86
#define PAROPT_DISPATCH(...)                                      \
  (::paropt::isa() == ::paropt::Isa::avx512 ? avx512::__VA_ARGS__ \
   : ::paropt::isa() == ::paropt::Isa::avx2 ? avx2::__VA_ARGS__   \
                                            : baseline::__VA_ARGS__)
#else
#define PAROPT_DISPATCH(...) (baseline::__VA_ARGS__)
#endif

// Ask for the line of memory that a loop over a long array comes to a page later, whether there is
// one or not. The processor's own fetching ahead stops where a page ends, and what it fetches
// waits while a loop is busy with something else.
PAROPT_ALWAYS_INLINE void fetch_ahead(const void* line) {
  constexpr std::uintptr_t kAhead = 4096;
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(line) + kAhead));
}

// Encoded bytes that cannot be trusted; becomes paropt_hpc.errors.MessageError.
struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Largest vector the wire format can describe.
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 40;

// The key of a float is its bits without the sign, as an unsigned integer: keys order floats by
// magnitude, infinity above every finite number and NaN above infinity.
template <class T>
struct FloatBits;

template <>
struct FloatBits<float> {
  using Key = std::uint32_t;
  static constexpr Key kMagnitude = 0x7fffffff;
  static constexpr Key kInfinity = 0x7f800000;
};

template <>
struct FloatBits<double> {
  using Key = std::uint64_t;
  static constexpr Key kMagnitude = 0x7fffffffffffffff;
  static constexpr Key kInfinity = 0x7ff0000000000000;
};

template <>
struct FloatBits<Float16> {
  using Key = std::uint16_t;
  static constexpr Key kMagnitude = 0x7fff;
  static constexpr Key kInfinity = 0x7c00;
};

template <>
struct FloatBits<BFloat16> {
  using Key = std::uint16_t;
  static constexpr Key kMagnitude = 0x7fff;
  static constexpr Key kInfinity = 0x7f80;
};

// A key is its own key.
template <>
struct FloatBits<std::uint16_t> : FloatBits<Float16> {};
template <>
struct FloatBits<std::uint32_t> : FloatBits<float> {};
template <>
struct FloatBits<std::uint64_t> : FloatBits<double> {};

template <class T>
using KeyOf = typename FloatBits<T>::Key;

template <class T>
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE KeyOf<T> key_of(T x) {
  KeyOf<T> bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & FloatBits<T>::kMagnitude;
}

template <class U>
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE U load(const std::uint8_t* bytes) {
  U value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class U>
PAROPT_HOST_DEVICE PAROPT_ALWAYS_INLINE void store(std::uint8_t* bytes, U value) {
  std::memcpy(bytes, &value, sizeof value);
}

// The numbers of the lanes of a vector of bytes.
struct ByteLanes {
  alignas(64) std::uint8_t at[64];
};

constexpr ByteLanes make_byte_lanes() {
  ByteLanes lanes{};
  for (int i = 0; i < 64; ++i) lanes.at[i] = static_cast<std::uint8_t>(i);
  return lanes;
}

constexpr ByteLanes kByteLanes = make_byte_lanes();

PAROPT_HOST_DEVICE inline std::size_t ceil_div(std::size_t a, std::size_t b) {
  return a / b + (a % b != 0);
}

// Number of bits of x, 0 for 0.
inline unsigned bit_width(std::uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

}  // namespace paropt
