#include "sgd.hpp"

#include <algorithm>

#include "common.hpp"

#define PAROPT_LOOPS "sgd_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {

namespace {

// Below two such blocks per thread, waking the threads costs more than they save.
constexpr std::size_t kBlock = 65536;

template <class T, bool kDecay>
void step_block(T* params, const T* gradient, T* velocity, std::size_t n, const SgdStep<T>& step) {
  if (velocity == nullptr) {
    PAROPT_DISPATCH(descend<T, kDecay>(params, gradient, n, step));
  } else if (step.nesterov) {
    PAROPT_DISPATCH(descend_with_momentum<T, kDecay, true>(params, gradient, velocity, n, step));
  } else {
    PAROPT_DISPATCH(descend_with_momentum<T, kDecay, false>(params, gradient, velocity, n, step));
  }
}

}  // namespace

template <class T>
void sgd_step(T* params, const T* gradient, T* velocity, std::size_t n, const SgdStep<T>& step) {
  // Adding nothing is no addition: it would turn a NaN or an infinite parameter into a gradient.
  const auto run = step.decay != 0 ? step_block<T, true> : step_block<T, false>;
  const std::size_t blocks = ceil_div(n, kBlock);
  [[maybe_unused]] const int threads = threads_for(blocks, 2);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t first = b * kBlock;
    T* const v = velocity == nullptr ? nullptr : velocity + first;
    run(params + first, gradient + first, v, std::min(kBlock, n - first), step);
  }
}

template void sgd_step(float*, const float*, float*, std::size_t, const SgdStep<float>&);
template void sgd_step(double*, const double*, double*, std::size_t, const SgdStep<double>&);

}  // namespace paropt
