// A step of gradient descent with momentum and weight decay, in one pass over the vectors.
#pragma once

#include <cstddef>

namespace paropt {

template <class T>
struct SgdStep {
  T rate;
  T momentum;
  T decay;
  bool nesterov;
};

// With g = gradient + decay * params for every entry, all products rounded before they are added:
//
//   velocity = momentum * velocity + g
//   params -= rate * velocity                      or, with nesterov,
//   params -= rate * (g + momentum * velocity)
//
// Without a velocity (nullptr): params -= rate * g. T is float or double. The three do not overlap;
// the gradient is left alone. The result does not depend on the number of threads.
template <class T>
void sgd_step(T* params, const T* gradient, T* velocity, std::size_t n, const SgdStep<T>& step);

}  // namespace paropt
