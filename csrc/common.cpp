#include "common.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace paropt {
namespace {

#if PAROPT_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") &&
         __builtin_cpu_supports("pclmul");  // F16C is older than AVX2, and clang cannot ask for it
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("vpclmulqdq");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

Isa best_isa() {
  if (isa_supported(Isa::avx512)) return Isa::avx512;
  return isa_supported(Isa::avx2) ? Isa::avx2 : Isa::baseline;
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> chosen{best_isa()};
  return chosen;
}

std::atomic<std::size_t>& grain() {
  static std::atomic<std::size_t> entries{std::size_t{1} << 20};
  return entries;
}

}  // namespace

const char* isa_name(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

bool isa_supported(Isa isa) {
  static const bool supported[] = {true, has_avx2(), has_avx512()};
  return supported[static_cast<int>(isa)];
}

Isa isa() { return chosen_isa().load(std::memory_order_relaxed); }

void set_isa(Isa isa) {
  if (!isa_supported(isa)) {
    throw std::invalid_argument(std::string("this processor does not support ") + isa_name(isa));
  }
  chosen_isa().store(isa, std::memory_order_relaxed);
}

#ifdef _OPENMP
int openmp_max_threads() { return omp_get_max_threads(); }
void set_openmp_threads(int threads) { omp_set_num_threads(threads); }
int thread_number() { return omp_get_thread_num(); }
#else
int openmp_max_threads() { return 1; }
void set_openmp_threads(int) {}
int thread_number() { return 0; }
#endif

int threads_for(std::size_t items, std::size_t grain) {
  const auto most = static_cast<std::size_t>(openmp_max_threads());
  return static_cast<int>(std::clamp<std::size_t>(items / grain, 1, most));
}

std::size_t entries_per_thread() { return grain().load(std::memory_order_relaxed); }

void set_entries_per_thread(std::size_t entries) {
  grain().store(std::max<std::size_t>(entries, 1), std::memory_order_relaxed);
}

int threads_for_entries(std::size_t n) { return threads_for(n, entries_per_thread()); }

}  // namespace paropt
