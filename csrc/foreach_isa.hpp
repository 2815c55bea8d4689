// Compiles the file named by PAROPT_LOOPS once per instruction set, into the namespaces
// paropt::baseline, paropt::avx2 and paropt::avx512. Included on purpose more than once per
// program, so no guard.
//
// In that file every function starts with PAROPT_TARGET (a function without it would be compiled
// for the baseline), PAROPT_LEVEL is 0, 1 or 2, and nothing is included: what it needs stands above
// the include of this file. Helpers are PAROPT_TARGET PAROPT_ALWAYS_INLINE, since a call between
// vector code costs more than most of them do. Such functions never open an OpenMP region, whose
// body the compiler moves into a function of its own without the target; the callers do.

#define PAROPT_LEVEL 0
#define PAROPT_TARGET
namespace paropt::baseline {
#include PAROPT_LOOPS
}  // namespace paropt::baseline
#undef PAROPT_LEVEL
#undef PAROPT_TARGET

#if PAROPT_X86

#define PAROPT_LEVEL 1
#define PAROPT_TARGET __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,f16c,pclmul")))
namespace paropt::avx2 {
#include PAROPT_LOOPS
}  // namespace paropt::avx2
#undef PAROPT_LEVEL
#undef PAROPT_TARGET

#define PAROPT_LEVEL 2
#define PAROPT_TARGET                                                                     \
  __attribute__((                                                                         \
      target("avx2,bmi,bmi2,lzcnt,popcnt,f16c,pclmul,avx512f,avx512bw,avx512cd,avx512dq," \
             "avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,avx512vpopcntdq,vpclmulqdq")))
namespace paropt::avx512 {
#include PAROPT_LOOPS
}  // namespace paropt::avx512
#undef PAROPT_LEVEL
#undef PAROPT_TARGET

#endif
