// The loops of fold.cpp; see foreach_isa.hpp.

// What is folded at a time: one cache line of T, widened. Wider than a register where it must be;
// the compiler then takes several.
template <class T, class A>
struct Line {
  static constexpr std::size_t kItems = 64 / sizeof(T);
  typedef A Wide __attribute__((vector_size(kItems * sizeof(A))));
};

PAROPT_TARGET PAROPT_ALWAYS_INLINE float widened(Float16 x) { return to_float(x); }
PAROPT_TARGET PAROPT_ALWAYS_INLINE float widened(BFloat16 x) { return to_float(x); }
template <class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE T widened(T x) {
  return x;
}

template <class T, class A>
PAROPT_TARGET PAROPT_ALWAYS_INLINE T narrowed(A x) {
  if constexpr (sizeof(T) == sizeof(A)) {
    return x;
  } else {
    return rounded<T>(x);
  }
}

// own = own op received, for single numbers and for vectors of them. Sums of integers come here
// unsigned: they wrap.
template <Op kOp, class V>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void fold_in(V* own, const V& received) {
  if constexpr (kOp == Op::min) {
    *own = (received < *own) | (received != received) ? received : *own;
  } else if constexpr (kOp == Op::max) {
    *own = (received > *own) | (received != received) ? received : *own;
  } else {
    *own = received + *own;
  }
}

template <Op kOp, class A, class T>
PAROPT_TARGET void fold_all(A* own, const T* received, std::size_t n) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) fold_in<kOp, A>(own + i, widened(received[i]));
}

template <class T>
PAROPT_TARGET void divide_all(T* data, std::size_t n, T divisor) {
  for (std::size_t i = 0; i < n; ++i) data[i] /= divisor;
}

template <class T>
PAROPT_TARGET void widen_all(float* out, const T* in, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = widened(in[i]);
}

template <class T>
PAROPT_TARGET void narrow_all(T* out, const float* in, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = rounded<T>(in[i]);
}

template <class A, class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void load_line(typename Line<T, A>::Wide* wide, const T* from) {
  if constexpr (sizeof(T) == sizeof(A)) {
    std::memcpy(wide, from, sizeof *wide);
  } else {
    A values[Line<T, A>::kItems];
    for (std::size_t i = 0; i < Line<T, A>::kItems; ++i) values[i] = widened(from[i]);
    std::memcpy(wide, values, sizeof *wide);
  }
}

template <class A, class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void store_line(T* to, typename Line<T, A>::Wide* wide) {
  if constexpr (sizeof(T) == sizeof(A)) {
    std::memcpy(to, wide, sizeof *wide);
  } else {
    A values[Line<T, A>::kItems];
    std::memcpy(values, wide, sizeof *wide);
    for (std::size_t i = 0; i < Line<T, A>::kItems; ++i) to[i] = rounded<T>(values[i]);
  }
}

template <class A, class V>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void scale(V* folded, A factor, A divisor) {
  if (factor != A{1}) *folded *= factor;
  if (divisor != A{1}) *folded /= divisor;
}

// Fold one line of two inputs into two outputs.
template <Op kOp, class A, class T>
PAROPT_TARGET PAROPT_ALWAYS_INLINE void reduce_line(const T* a, const T* b, T* x, T* y, A factor,
                                                    A divisor) {
  typename Line<T, A>::Wide folded, next;
  load_line<A>(&folded, a);
  load_line<A>(&next, b);
  fold_in<kOp>(&folded, next);
  scale(&folded, factor, divisor);
  store_line<A>(x, &folded);
  store_line<A>(y, &folded);
}

// The lines below element `whole` for two inputs and two outputs, the case of two ranks.
template <Op kOp, class A, class T>
PAROPT_TARGET void reduce_pair(const T* a, const T* b, T* x, T* y, std::size_t whole, A factor,
                               A divisor) {
  constexpr std::size_t kItems = Line<T, A>::kItems;
  const std::size_t apart = lines_apart(whole / kItems) * kItems;
  for (std::size_t at = 0; at < apart; at += kItems) {
    const std::size_t other = apart + at;
    reduce_line<kOp, A>(a + at, b + at, x + at, y + at, factor, divisor);
    reduce_line<kOp, A>(a + other, b + other, x + other, y + other, factor, divisor);
  }
  for (std::size_t at = 2 * apart; at < whole; at += kItems) {
    reduce_line<kOp, A>(a + at, b + at, x + at, y + at, factor, divisor);
  }
}

// A result is multiplied by `factor` and divided by `divisor`, of which one at least is 1.
template <Op kOp, class A, class T>
PAROPT_TARGET void reduce_all(const void* const* in, int inputs, void* const* out, int outputs,
                              std::size_t n, A factor, A divisor) {
  constexpr std::size_t kItems = Line<T, A>::kItems;
  const auto input = [&](int i) { return static_cast<const T*>(in[i]); };
  const auto output = [&](int i) { return static_cast<T*>(out[i]); };
  const std::size_t whole = n / kItems * kItems;
  const bool pair = inputs == 2 && outputs == 2;
  if (pair) {
    reduce_pair<kOp>(input(0), input(1), output(0), output(1), whole, factor, divisor);
  }
  for (std::size_t at = pair ? whole : 0; at < whole; at += kItems) {
    typename Line<T, A>::Wide folded, next;
    load_line<A>(&folded, input(0) + at);
    for (int i = 1; i < inputs; ++i) {
      load_line<A>(&next, input(i) + at);
      fold_in<kOp>(&folded, next);
    }
    scale(&folded, factor, divisor);
    for (int o = 0; o < outputs; ++o) store_line<A>(output(o) + at, &folded);
  }
  for (std::size_t at = whole; at < n; ++at) {
    A folded = widened(input(0)[at]);
    for (int i = 1; i < inputs; ++i) fold_in<kOp, A>(&folded, widened(input(i)[at]));
    folded = folded * factor / divisor;
    for (int o = 0; o < outputs; ++o) output(o)[at] = narrowed<T>(folded);
  }
}

PAROPT_TARGET inline void copy_bytes(char* out, const char* in, std::size_t bytes) {
  const std::size_t apart = lines_apart(bytes / kLine) * kLine;
  for (std::size_t at = 0; at < apart; at += kLine) {
    std::memcpy(out + at, in + at, kLine);
    std::memcpy(out + apart + at, in + apart + at, kLine);
  }
  std::memcpy(out + 2 * apart, in + 2 * apart, bytes - 2 * apart);
}
