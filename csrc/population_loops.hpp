// The loops of population.cpp; see foreach_isa.hpp.
//
// A row is worked on in blocks of 8 columns, whatever the width of the vectors, so that sums have
// one order. The last block of a row reaches back over columns of the one before (or, in a row
// shorter than 8, is padded), which is harmless as long as nothing is read after it has been
// written.

#if PAROPT_LEVEL == 2
constexpr std::size_t kLanes = 8;
#elif PAROPT_LEVEL == 1
constexpr std::size_t kLanes = 4;
#else
constexpr std::size_t kLanes = 2;
#endif
constexpr std::size_t kParts = 8 / kLanes;

typedef double V __attribute__((vector_size(8 * kLanes)));
typedef float F __attribute__((vector_size(4 * kLanes)));
typedef std::int64_t M __attribute__((vector_size(8 * kLanes)));  // a mask, or bits
typedef std::uint64_t B __attribute__((vector_size(8 * kLanes)));
typedef std::uint32_t U __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t I __attribute__((vector_size(4 * kLanes)));

// ---- vectors ---------------------------------------------------------------------------------

// Columns [at, at + kLanes) of a row of d; beyond its end, zero.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V load_columns(const double* row, std::size_t at,
                                                  std::size_t d) {
  V v = {};
  if (at + kLanes <= d) {
    std::memcpy(&v, row + at, sizeof v);
  } else {
    for (std::size_t l = 0; l < kLanes; ++l) v[l] = at + l < d ? row[at + l] : 0;
  }
  return v;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE void store_columns(double* row, std::size_t at, std::size_t d,
                                                      V v) {
  if (at + kLanes <= d) {
    std::memcpy(row + at, &v, sizeof v);
  } else {
    for (std::size_t l = 0; at + l < d && l < kLanes; ++l) row[at + l] = v[l];
  }
}

// Where a block that should start at b starts.
PAROPT_TARGET PAROPT_ALWAYS_INLINE std::size_t block_start(std::size_t b, std::size_t d) {
  return d < 8 || b + 8 <= d ? b : d - 8;
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE U lanes_from(std::size_t at) {
  U u = {};
  for (std::size_t l = 0; l < kLanes; ++l) u[l] = static_cast<std::uint32_t>(l);
  return u + static_cast<std::uint32_t>(at);
}

// Zero where a lane is not of the block that starts at b.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V only_block(V v, std::size_t at, std::size_t b, std::size_t d) {
  if (at >= b && at + kLanes <= d) return v;
  const U column = lanes_from(at);
  const auto first = static_cast<std::uint32_t>(b), end = static_cast<std::uint32_t>(d);
  const M inside = __builtin_convertvector((I)((column >= first) & (column < end)), M);
  return (V)((M)v & inside);
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE V all(double x) { return V{} + x; }
PAROPT_TARGET PAROPT_ALWAYS_INLINE V min_of(V a, V b) { return a < b ? a : b; }
PAROPT_TARGET PAROPT_ALWAYS_INLINE V max_of(V a, V b) { return a > b ? a : b; }
PAROPT_TARGET PAROPT_ALWAYS_INLINE V abs_of(V a) { return (V)((M)a & 0x7fffffffffffffff); }
// Nearest integer, of numbers below 2^51 in magnitude.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V rint_of(V a) { return (a + 0x1.8p52) - 0x1.8p52; }

PAROPT_TARGET PAROPT_ALWAYS_INLINE bool any(M mask) {
#if PAROPT_LEVEL == 2
  return _mm512_movepi64_mask((__m512i)mask) != 0;
#elif PAROPT_LEVEL == 1
  return _mm256_movemask_pd((__m256d)mask) != 0;
#else
  return (mask[0] | mask[1]) != 0;
#endif
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE V sqrt_of(V a) {
#if PAROPT_LEVEL == 2
  return (V)_mm512_maskz_sqrt_pd(0xff, (__m512d)a);  // the plain one makes GCC 12 warn
#elif PAROPT_LEVEL == 1
  return (V)_mm256_sqrt_pd((__m256d)a);
#elif PAROPT_X86
  return (V)_mm_sqrt_pd((__m128d)a);
#else
  for (std::size_t l = 0; l < kLanes; ++l) a[l] = std::sqrt(a[l]);
  return a;
#endif
}

// The sum of 8 lanes, in halves.
PAROPT_TARGET PAROPT_ALWAYS_INLINE double sum_lanes(const V* acc) {
  double s[8];
  std::memcpy(s, acc, sizeof s);
  for (std::size_t half = 4; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) s[l] += s[l + half];
  }
  return s[0];
}

// ---- elementary functions, within 2 units in the last place ---------------------------------

// sin(pi x) for |x| <= 1/2, by its Taylor series.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V sinpi_of(V x) {
  const V z = x * x;
  V p = all(kSinPi[10]);
  for (int k = 9; k >= 0; --k) p = p * z + kSinPi[k];
  return p * x;
}

// exp(x) for |x| <= 700: 2^n times the Taylor series of the rest.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V exp_of(V x) {
  const V shifted = x * kLog2E + 0x1.8p52;
  const V n = shifted - 0x1.8p52;
  const V r = (x - n * kLn2High) - n * kLn2Low;
  V p = all(kInverseFactorial[13]);
  for (int k = 12; k >= 0; --k) p = p * r + kInverseFactorial[k];
  return p * (V)(((B)shifted + 1023) << 52);
}

// log(x) for normal x > 0: the exponent, and 2 atanh((m - 1) / (m + 1)) of the mantissa, by its
// Taylor series.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V log_of(V x) {
  const B bits = (B)x;
  const B k = (bits + 0x0009'5f61'9980'c433) >> 52;  // 1023 + exponent, the mantissa near 1
  const V m = (V)(bits - ((k - 1023) << 52));
  const V exponent = (V)(k + 0x4338'0000'0000'0000) - (0x1.8p52 + 1023);
  const V s = (m - 1.0) / (m + 1.0), z = s * s;
  V p = all(1.0 / 23);
  for (int i = 21; i >= 1; i -= 2) p = p * z + 1.0 / i;
  return exponent * kLn2High + (exponent * kLn2Low + 2.0 * s * p);
}

// ---- random numbers --------------------------------------------------------------------------

// Word j of a stream: a mixing function of two multiplications (C. Wellons, "Prospecting for hash
// functions", 2018), with the second half of the stream's name in its middle.
PAROPT_TARGET PAROPT_ALWAYS_INLINE U words(Stream s, U j) {
  U x = j * 0x9e3779b9u + s.a;
  x = (x ^ x >> 16) * 0x21f0aaadu ^ s.b;
  x = (x ^ x >> 15) * 0x735a2d97u;
  return x ^ x >> 15;
}

// In [0, scale), multiples of scale / 2^31.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V uniforms(Stream s, U j, double scale = 1.0) {
  return __builtin_convertvector((I)(words(s, j) >> 1), V) * (scale * 0x1p-31);
}

// Whether uniforms() are less than a rate, of which multiples_below() is given.
PAROPT_TARGET PAROPT_ALWAYS_INLINE I less(Stream s, U j, std::uint32_t multiples) {
  return (I)((words(s, j) >> 1) < multiples);
}

// Box-Muller: both normal numbers of a pair of uniform ones; of the sine of pi w, w in [-1/2, 1/2),
// follow the sine and cosine of 2 pi w.
PAROPT_TARGET PAROPT_ALWAYS_INLINE void normal_pair(Stream s, Stream t, U j, V& first, V& second) {
  const V radius = sqrt_of(-2.0 * log_of(1.0 - uniforms(s, j)));
  const V sine = sinpi_of(uniforms(t, j) - 0.5);
  first = radius * (2.0 * sine * sine - 1.0);
  second = radius * (2.0 * sine * sqrt_of(1.0 - sine * sine));
}

// Columns [0, half) take the first of each pair, the rest the second.
PAROPT_TARGET void normal_row(Stream s, std::size_t d, double* out) {
  const std::size_t half = (d + 1) / 2;
  const Stream t = s.second();
  for (std::size_t b = 0; b < half; b += 8) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = block_start(b, half) + part * kLanes;
      V first, second;
      normal_pair(s, t, lanes_from(at), first, second);
      store_columns(out, at, half, first);
      store_columns(out + half, at, d - half, second);
    }
  }
}

PAROPT_TARGET double smallest(const double* f, std::size_t n) {
  if (n < kLanes) return *std::min_element(f, f + n);
  V least = load_columns(f, n - kLanes, n);
  for (std::size_t i = 0; i + kLanes <= n; i += kLanes) {
    least = min_of(least, load_columns(f, i, n));
  }
  double found = least[0];
  for (std::size_t l = 1; l < kLanes; ++l) found = least[l] < found ? least[l] : found;
  return found;
}

// ---- objectives ------------------------------------------------------------------------------

PAROPT_TARGET double sphere(const double* x, std::size_t d) {
  V acc[kParts] = {};
  for (std::size_t b = 0; b < d; b += 8) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = block_start(b, d) + part * kLanes;
      const V v = load_columns(x, at, d);
      acc[part] += only_block(v * v, at, b, d);
    }
  }
  return sum_lanes(acc);
}

PAROPT_TARGET double rastrigin(const double* x, std::size_t d) {
  V acc[kParts] = {};
  for (std::size_t b = 0; b < d; b += 8) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = block_start(b, d) + part * kLanes;
      const V v = load_columns(x, at, d), sine = sinpi_of(v - rint_of(v));
      acc[part] += only_block(v * v + 20.0 * (sine * sine), at, b, d);
    }
  }
  return sum_lanes(acc);
}

PAROPT_TARGET double rosenbrock(const double* x, std::size_t d) {
  const std::size_t terms = d - 1;
  V acc[kParts] = {};
  for (std::size_t b = 0; b < terms; b += 8) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = block_start(b, terms) + part * kLanes;
      const V v = load_columns(x, at, terms), next = load_columns(x + 1, at, terms);
      const V valley = next - v * v, slope = 1.0 - v;
      acc[part] += only_block(100.0 * (valley * valley) + slope * slope, at, b, terms);
    }
  }
  return sum_lanes(acc);
}

PAROPT_TARGET double ackley(const double* x, std::size_t d) {
  V squares[kParts] = {}, sines[kParts] = {};
  for (std::size_t b = 0; b < d; b += 8) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = block_start(b, d) + part * kLanes;
      const V v = load_columns(x, at, d), sine = sinpi_of(v - rint_of(v));
      squares[part] += only_block(v * v, at, b, d);
      sines[part] += only_block(sine * sine, at, b, d);
    }
  }
  const auto count = static_cast<double>(d);
  V exponent = {};
  exponent[0] = -0.2 * std::sqrt(sum_lanes(squares) / count);
  exponent[1] = -2.0 * (sum_lanes(sines) / count);
  const V e = exp_of(exponent);
  return 20.0 * (1.0 - e[0]) + kE * (1.0 - e[1]);
}

PAROPT_TARGET void evaluate_rows(Objective objective, const double* x, std::size_t m, std::size_t d,
                                 double* f) {
  switch (objective) {
    case Objective::sphere:
      for (std::size_t i = 0; i < m; ++i) f[i] = sphere(x + i * d, d);
      break;
    case Objective::rastrigin:
      for (std::size_t i = 0; i < m; ++i) f[i] = rastrigin(x + i * d, d);
      break;
    case Objective::rosenbrock:
      for (std::size_t i = 0; i < m; ++i) f[i] = rosenbrock(x + i * d, d);
      break;
    case Objective::ackley:
      for (std::size_t i = 0; i < m; ++i) f[i] = ackley(x + i * d, d);
      break;
  }
}

// ---- differential evolution ------------------------------------------------------------------

// A row of the trial: the mutant where the column is crossed over, else the member's own.
PAROPT_TARGET void de_row(const DifferentialEvolution& de, Stream s, const DePick& pick,
                          double weight, double rate, double* trial) {
  const std::size_t d = de.box.d;
  const bool towards = de.mutation == Mutation::current_to_best_1;
  const std::uint32_t crossing = multiples_below(rate);
  for (std::size_t b = 0; b < d; b += 8) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = block_start(b, d) + part * kLanes;
      const U column = lanes_from(at);
      const V own = load_columns(pick.own, at, d), base = load_columns(pick.base, at, d);
      const V plus = load_columns(pick.plus, at, d), minus = load_columns(pick.minus, at, d);
      V mutant = (towards ? own + weight * (base - own) : base) + weight * (plus - minus);
      const V low = load_columns(de.box.lower, at, d), high = load_columns(de.box.upper, at, d);
      const M under = mutant<low, over = mutant> high;
      if (any(under | over)) {
        mutant = under ? (own + low) * 0.5 : mutant;
        mutant = over ? (own + high) * 0.5 : mutant;
      }
      const I crossed = less(s, column, crossing) | (I)(column == pick.column);
      store_columns(trial, at, d, __builtin_convertvector(crossed, M) ? mutant : own);
    }
  }
}

PAROPT_TARGET void de_rows(const DifferentialEvolution& de, std::uint64_t key, const double* x,
                           double* trial, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    const Stream s(key, i);
    const DePick pick(de, s.second(), x, i);
    de_row(de, s, pick, de.weight[i], de.rate[i], trial + i * de.box.d);
  }
}

// ---- particle swarm --------------------------------------------------------------------------

// Bring particles back into the box, and turn or stop those that left.
PAROPT_TARGET PAROPT_ALWAYS_INLINE void keep_inside(Bounds bounds, V low, V high, V& x, V& v) {
  const M outside = (x < low) | (x > high);
  if (!any(outside)) return;
  if (bounds == Bounds::periodic) {
    const V range = high - low, turns = (x - low) / range, nearest = rint_of(turns);
    const V whole = nearest > turns ? nearest - 1.0 : nearest;
    x = outside ? x - whole * range : x;
  } else if (bounds == Bounds::reflect) {
    x = x < low ? low + (low - x) : x;
    x = x > high ? high - (x - high) : x;
    v = outside ? -v : v;
  } else {
    v = outside ? V{} : v;
  }
  x = min_of(max_of(x, low), high);
}

// The columns of a block after a step, computed from x and v before either is written.
PAROPT_TARGET PAROPT_ALWAYS_INLINE void swarm_block(const Swarm& swarm, Stream s, Stream t,
                                                    const double* own, const double* guide,
                                                    const double* x, const double* v,
                                                    std::size_t start, V* place, V* speed) {
  const std::size_t d = swarm.box.d;
  for (std::size_t part = 0; part < kParts; ++part) {
    const std::size_t at = start + part * kLanes;
    const U column = lanes_from(at);
    const V here = load_columns(x, at, d), fastest = load_columns(swarm.fastest, at, d);
    V velocity = swarm.inertia * load_columns(v, at, d) +
                 uniforms(s, column, swarm.own) * (load_columns(own, at, d) - here) +
                 uniforms(t, column, swarm.social) * (load_columns(guide, at, d) - here);
    velocity = min_of(max_of(velocity, -fastest), fastest);
    V there = here + velocity;
    keep_inside(swarm.bounds, load_columns(swarm.box.lower, at, d),
                load_columns(swarm.box.upper, at, d), there, velocity);
    place[part] = there;
    speed[part] = velocity;
  }
}

PAROPT_TARGET PAROPT_ALWAYS_INLINE void store_block(double* row, std::size_t start, std::size_t d,
                                                    const V* block) {
  for (std::size_t part = 0; part < kParts; ++part) {
    store_columns(row, start + part * kLanes, d, block[part]);
  }
}

PAROPT_TARGET void swarm_row(const Swarm& swarm, Stream s, const double* own, const double* guide,
                             double* x, double* v) {
  const std::size_t d = swarm.box.d, full = d / 8 * 8;
  const Stream t = s.second();
  V place[kParts], speed[kParts], last_place[kParts] = {}, last_speed[kParts] = {};
  const std::size_t last = block_start(full, d);
  if (full < d) swarm_block(swarm, s, t, own, guide, x, v, last, last_place, last_speed);
  for (std::size_t b = 0; b < full; b += 8) {
    swarm_block(swarm, s, t, own, guide, x, v, b, place, speed);
    store_block(x, b, d, place);
    store_block(v, b, d, speed);
  }
  if (full < d) {
    store_block(x, last, d, last_place);
    store_block(v, last, d, last_speed);
  }
}

PAROPT_TARGET void swarm_rows(const Swarm& swarm, std::uint64_t key, const double* best_x,
                              const std::uint32_t* guide, double* x, double* v, std::size_t first,
                              std::size_t last) {
  const std::size_t d = swarm.box.d;
  for (std::size_t i = first; i < last; ++i) {
    swarm_row(swarm, Stream(key, i), best_x + i * d, best_x + guide[i] * d, x + i * d, v + i * d);
  }
}

// ---- genetic algorithm -----------------------------------------------------------------------

// u^e for u in [2^-30, 1] and |e| <= 1, to 6 digits, which is enough for a random step.
PAROPT_TARGET PAROPT_ALWAYS_INLINE F power(F u, F e) {
  const U bits = (U)u;
  const U k = (bits + 0x004a'fb0d) >> 23;  // 127 + exponent, the mantissa near 1
  const F m = (F)(bits - ((k - 127) << 23));
  const F s = (m - 1.0f) / (m + 1.0f), z = s * s;
  F log = F{} + kLog2Series[3];
  for (int i = 2; i >= 0; --i) log = log * z + kLog2Series[i];
  const F y = e * (__builtin_convertvector((I)k - 127, F) + s * log);
  const F shifted = y + 0x1.8p23f, r = y - (shifted - 0x1.8p23f);
  F exp = F{} + kExp2Series[6];
  for (int i = 5; i >= 0; --i) exp = exp * r + kExp2Series[i];
  return exp * (F)(((U)shifted + 127) << 23);
}

// In (0, 1]: of the low 29 bits of a word.
PAROPT_TARGET PAROPT_ALWAYS_INLINE F low_uniforms(U word) {
  return __builtin_convertvector((I)(word & 0x1fff'ffff) + 1, F) * 0x1p-29f;
}

// Cross a pair of columns by the bits of a word: one says whether, for half of them stay, two say
// on which sides of their parents the children are, the rest how far away.
PAROPT_TARGET PAROPT_ALWAYS_INLINE void cross(const Genetic& ga, U word, V& p, V& q) {
  const F u = low_uniforms(word);
  const M crossed = __builtin_convertvector((I)(word << 1) < 0, M);
  const V middle = 0.5 * (p + q);
  V half;
  if (ga.crossover == Crossover::simulated_binary) {
    const F exponent = F{} + static_cast<float>(1.0 / (ga.crossover_index + 1.0));
    const F spread = power(u, (I)(word << 2) < 0 ? exponent : -exponent);
    half = __builtin_convertvector((F)((U)spread ^ (word & 0x8000'0000)), V) * (0.5 * (p - q));
  } else {
    half = (2.0 * __builtin_convertvector(u, V) - 1.0) * ((0.5 + ga.crossover_index) * (p - q));
  }
  p = crossed ? middle + half : p;
  q = crossed ? middle - half : q;
}

PAROPT_TARGET void ga_pair(const Genetic& ga, Stream s, const double* p, const double* q, double* a,
                           double* b) {
  const std::size_t d = ga.box.d;
  if (word(s.second(), 0) >= ga.crossover_rate * 0x1p32) {
    std::memcpy(a, p, d * sizeof(double));
    if (b != nullptr) std::memcpy(b, q, d * sizeof(double));
    return;
  }
  for (std::size_t start = 0; start < d; start += 8) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = block_start(start, d) + part * kLanes;
      V one = load_columns(p, at, d), two = load_columns(q, at, d);
      const V low = load_columns(ga.box.lower, at, d), high = load_columns(ga.box.upper, at, d);
      cross(ga, words(s, lanes_from(at)), one, two);
      store_columns(a, at, d, min_of(max_of(one, low), high));
      if (b != nullptr) store_columns(b, at, d, min_of(max_of(two, low), high));
    }
  }
}

// By how much of its column's range each of a group's mutated numbers moves.
PAROPT_TARGET PAROPT_ALWAYS_INLINE V steps(const Genetic& ga, Stream s, U number) {
  if (ga.deviation == Deviation::polynomial) {
    const U word = words(s, number);
    const F exponent = F{} + static_cast<float>(1.0 / (ga.mutation_index + 1.0));
    const F size = 1.0f - power(low_uniforms(word), exponent);
    return __builtin_convertvector((F)((U)size ^ (word & 0x8000'0000)), V);
  }
  V step, other;
  normal_pair(s, s.second(), number, step, other);
  return step * ga.mutation_index;
}

// Mutate some of m rows. Which ones is known from the gaps between them, so that the work is in
// proportion to their number: a gap is geometrically distributed.
PAROPT_TARGET void ga_mutate(const Genetic& ga, Stream s, double* rows, std::size_t m) {
  if (ga.mutation_rate == 0.0) return;
  const std::size_t d = ga.box.d, count = m * d;
  const double scale = 1.0 / std::log1p(-ga.mutation_rate);
  const Stream t = s.second();
  std::size_t next = 0;
  for (std::uint32_t number = 0;; number += kLanes) {
    const V gap = log_of(1.0 - uniforms(s, lanes_from(number))) * scale;
    const M skipped = __builtin_convertvector(min_of(gap, all(0x1p52)), M);
    const V step = steps(ga, t, lanes_from(number));
    for (std::size_t l = 0; l < kLanes; ++l, ++next) {
      next += static_cast<std::size_t>(skipped[l]);
      if (next >= count) return;
      const double low = ga.box.lower[next % d], high = ga.box.upper[next % d];
      rows[next] = std::min(std::max(rows[next] + step[l] * (high - low), low), high);
    }
  }
}

// Pairs [first, last), first a multiple of kGroup.
PAROPT_TARGET void ga_rows(const Genetic& ga, std::uint64_t key, const double* x,
                           const std::uint32_t* parents, double* child, std::size_t first,
                           std::size_t last) {
  const std::size_t d = ga.box.d;
  for (std::size_t group = first; group < last; group += kGroup) {
    const std::size_t end = std::min(last, group + kGroup);
    for (std::size_t pair = group; pair < end; ++pair) {
      const std::size_t i = 2 * pair, j = std::min(i + 1, ga.children - 1);
      ga_pair(ga, Stream(key, i), x + parents[i] * d, x + parents[j] * d, child + i * d,
              j > i ? child + j * d : nullptr);
    }
    const std::size_t rows = std::min(2 * end, ga.children) - 2 * group;
    ga_mutate(ga, Stream(key, kGroupStreams + group / kGroup), child + 2 * group * d, rows);
  }
}

PAROPT_TARGET void normal_rows(std::uint64_t key, std::size_t d, double* out, std::size_t first,
                               std::size_t last) {
  for (std::size_t i = first; i < last; ++i) normal_row(Stream(key, i), d, out + i * d);
}
