// The loops of sgd.cpp; see foreach_isa.hpp. What is the same for all entries is decided outside.

template <class T, bool kDecay>
PAROPT_TARGET void descend(T* __restrict params, const T* __restrict gradient, std::size_t n,
                           const SgdStep<T>& step) {
  const T rate = step.rate, decay = step.decay;
  for (std::size_t i = 0; i < n; ++i) {
    T g = gradient[i];
    if (kDecay) g += decay * params[i];
    params[i] -= rate * g;
  }
}

template <class T, bool kDecay, bool kNesterov>
PAROPT_TARGET void descend_with_momentum(T* __restrict params, const T* __restrict gradient,
                                         T* __restrict velocity, std::size_t n,
                                         const SgdStep<T>& step) {
  const T rate = step.rate, decay = step.decay, momentum = step.momentum;
  for (std::size_t i = 0; i < n; ++i) {
    T g = gradient[i];
    if (kDecay) g += decay * params[i];
    const T v = momentum * velocity[i] + g;
    velocity[i] = v;
    params[i] -= rate * (kNesterov ? g + momentum * v : v);
  }
}
