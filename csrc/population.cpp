#include "population.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common.hpp"
#include "stream.hpp"

namespace paropt {
namespace {

// How many multiples of 2^-31 in [0, 1) are below a rate.
PAROPT_ALWAYS_INLINE std::uint32_t multiples_below(double rate) {
  const double count = std::min(std::max(0.0, rate), 1.0) * 0x1p31;
  const auto whole = static_cast<std::uint32_t>(count);
  return whole + (whole < count);
}

// The vectors of a trial: three different members, none of them the challenged one.
struct DePick {
  const double *own, *base, *plus, *minus;
  std::uint32_t column;  // that is always crossed over

  PAROPT_ALWAYS_INLINE DePick(const DifferentialEvolution& de, Stream s, const double* x,
                              std::size_t i) {
    const std::size_t d = de.box.d, n = de.n;
    const auto me = static_cast<std::uint32_t>(i);
    own = x + i * d;
    column = below(s, 0, d);
    std::uint32_t a = below(s, 1, n - 1);
    a += a >= me;
    std::uint32_t low = std::min(a, me), high = std::max(a, me);
    plus = x + a * d;
    const bool random_base = de.mutation == Mutation::rand_1;
    if (random_base) {
      std::uint32_t r = below(s, 2, n - 2);
      r += r >= low;
      r += r >= high;
      base = x + r * d;
      const std::uint32_t most = std::max(high, r), least = std::min(low, r);
      std::uint32_t c = below(s, 3, n + de.archived - 3);
      c += c >= least;
      c += c >= low + high + r - most - least;
      c += c >= most;
      minus = c < n ? x + c * d : de.archive + (c - n) * d;
    } else {
      base = x + de.guides[below(s, 2, de.guided)] * d;
      std::uint32_t c = below(s, 3, n + de.archived - 2);
      c += c >= low;
      c += c >= high;
      minus = c < n ? x + c * d : de.archive + (c - n) * d;
    }
  }
};

constexpr double kE = 2.718281828459045;
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;

// (-1)^k pi^(2k + 1) / (2k + 1)!
constexpr double kSinPi[] = {
    3.141592653589793,     -5.16771278004997,       2.5501640398773455,     -0.5992645293207921,
    0.08214588661112823,   -0.0073704309457143504,  0.00046630280576761255, -2.1915353447830217e-05,
    7.952054001475513e-07, -2.2948428997269873e-08, 5.392664662608127e-10};
constexpr double kInverseFactorial[] = {1.0,
                                        1.0,
                                        1.0 / 2,
                                        1.0 / 6,
                                        1.0 / 24,
                                        1.0 / 120,
                                        1.0 / 720,
                                        1.0 / 5040,
                                        1.0 / 40320,
                                        1.0 / 362880,
                                        1.0 / 3628800,
                                        1.0 / 39916800,
                                        1.0 / 479001600,
                                        1.0 / 6227020800};
constexpr float kLog2Series[] = {2.8853900817779268f, 0.96179669392597561f, 0.57707801635558536f,
                                 0.41219858311113241f};  // 2 / (2k + 1) / log 2
constexpr float kExp2Series[] = {1.0f,
                                 0.69314718055994531f,
                                 0.24022650695910071f,
                                 0.055504108664821580f,
                                 0.0096181291076284772f,
                                 0.0013333558146428443f,
                                 0.00015403530393381609f};  // (log 2)^k / k!

// Pairs of children whose mutations come from one stream, and the number of the first of these.
constexpr std::size_t kGroup = 32;
constexpr std::uint64_t kGroupStreams = std::uint64_t{1} << 41;

}  // namespace
}  // namespace paropt

#define PAROPT_LOOPS "population_loops.hpp"
#include "foreach_isa.hpp"

namespace paropt {
namespace {

// Numbers below which waking a second thread costs more than it saves.
constexpr std::size_t kGrain = 1 << 17;
constexpr std::size_t kRows = 64;  // a thread's share is made of so many
static_assert(kRows % kGroup == 0);

// Call rows(first, last) for parts of m rows of d numbers, by as many threads as are worth it.
template <class Rows>
void for_rows(std::size_t m, std::size_t d, Rows rows) {
  const int threads = threads_for(m * d, kGrain);
  if (threads == 1) return rows(std::size_t{0}, m);
  const std::size_t parts = ceil_div(m, kRows);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::size_t part = 0; part < parts; ++part) {
    rows(part * kRows, std::min(m, (part + 1) * kRows));
  }
}

// Move the numbers that fit to the front, without a branch to mispredict; return how many they are.
template <class Fits>
std::size_t move_first(double* v, std::size_t n, Fits fits) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = v[i];
    v[i] = v[first];
    v[first] = x;
    first += fits(x);
  }
  return first;
}

// The k-th of n numbers in order, k from 0; they change places.
double kth_smallest(double* v, std::size_t n, std::size_t k) {
  for (int round = 0; round < 64; ++round) {
    const double a = v[0], b = v[n / 2], c = v[n - 1];
    const double pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    const std::size_t less = move_first(v, n, [=](double x) { return x < pivot; });
    if (k < less) {
      n = less;
      continue;
    }
    const std::size_t done =
        less + move_first(v + less, n - less, [=](double x) { return x <= pivot; });
    if (k < done) return pivot;
    v += done, n -= done, k -= done;
  }
  std::nth_element(v, v + k, v + n);  // where the pivots were bad ones
  return v[k];
}

// The best of some rivals; of equal ones the first.
struct Survivors {
  double worst = -std::numeric_limits<double>::infinity();
  std::size_t ties = 0;  // how many of those that equal the worst survivor live

  Survivors(double* values, std::size_t n, std::size_t count) {
    if (count == 0) return;
    worst = kth_smallest(values, n, count - 1);
    ties = count;
    for (std::size_t i = 0; i < n; ++i) ties -= values[i] < worst;
  }

  // To be asked in order, with what is left of the ties.
  bool lives(double value, std::size_t& left) const {
    const bool tied = (value == worst) & (left > 0);
    left -= tied;
    return (value < worst) | tied;
  }
};

std::uint32_t first_smallest(const double* f, std::size_t n) {
  const double least = PAROPT_DISPATCH(smallest(f, n));
  std::uint32_t i = 0;
  while (i + 1 < n && f[i] != least) ++i;
  return i;
}

// Note the best of m rows that were just evaluated; return whether the run may end.
bool note_best(const Best& best, const double* x, const double* f, std::size_t m, std::size_t d) {
  if (PAROPT_DISPATCH(smallest(f, m)) < *best.f) {
    const std::uint32_t i = first_smallest(f, m);
    *best.f = f[i];
    std::memcpy(best.x, x + i * d, d * sizeof(double));
  }
  return *best.f <= best.target;
}

// The member whose best each particle follows; the first of equal ones.
void choose_guides(const Swarm& swarm, const double* best_f, std::uint32_t* guide) {
  if (swarm.neighbouring == 0) {
    std::fill_n(guide, swarm.n, first_smallest(best_f, swarm.n));
    return;
  }
  for (std::size_t i = 0; i < swarm.n; ++i) {
    const std::uint32_t* known = swarm.neighbours + i * swarm.neighbouring;
    guide[i] = *std::min_element(known, known + swarm.neighbouring,
                                 [=](auto a, auto b) { return best_f[a] < best_f[b]; });
  }
}

}  // namespace

std::uint64_t generation_key(std::uint64_t key, std::uint64_t generation) {
  return mix(key ^ mix(generation + 0x9e3779b97f4a7c15));
}

void evaluate(Objective objective, const double* x, std::size_t m, std::size_t d, double* f) {
  for_rows(m, d, [=](std::size_t first, std::size_t last) {
    PAROPT_DISPATCH(evaluate_rows(objective, x + first * d, last - first, d, f + first));
  });
}

void normals(std::uint64_t key, std::size_t m, std::size_t d, double* out) {
  for_rows(m, d, [=](std::size_t first, std::size_t last) {
    PAROPT_DISPATCH(normal_rows(key, d, out, first, last));
  });
}

void take_better(double* x, double* f, const double* other, const double* other_f, std::size_t n,
                 std::size_t d, bool strict) {
  for_rows(n, d, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      if (strict ? other_f[i] < f[i] : other_f[i] <= f[i]) {
        f[i] = other_f[i];
        std::memcpy(x + i * d, other + i * d, d * sizeof(double));
      }
    }
  });
}

void de_trials(const DifferentialEvolution& de, std::uint64_t key, const double* x, double* trial) {
  for_rows(de.n, de.box.d, [&, key, x, trial](std::size_t first, std::size_t last) {
    PAROPT_DISPATCH(de_rows(de, key, x, trial, first, last));
  });
}

std::size_t de_run(DifferentialEvolution de, Objective objective, std::uint64_t key,
                   std::uint64_t generation, std::size_t generations, double* x, double* f,
                   double* trial, double* trial_f, Best best) {
  std::uint32_t guide = 0;
  de.guides = &guide;
  de.guided = 1;
  for (std::size_t g = 0; g < generations; ++g) {
    if (de.mutation != Mutation::rand_1) guide = first_smallest(f, de.n);
    de_trials(de, generation_key(key, generation + g), x, trial);
    evaluate(objective, trial, de.n, de.box.d, trial_f);
    take_better(x, f, trial, trial_f, de.n, de.box.d, false);
    if (note_best(best, trial, trial_f, de.n, de.box.d)) return g + 1;
  }
  return generations;
}

void swarm_move(const Swarm& swarm, std::uint64_t key, const double* best_x, const double* best_f,
                double* x, double* v, std::uint32_t* guide) {
  choose_guides(swarm, best_f, guide);
  for_rows(swarm.n, swarm.box.d, [&, key, x, v](std::size_t first, std::size_t last) {
    PAROPT_DISPATCH(swarm_rows(swarm, key, best_x, guide, x, v, first, last));
  });
}

std::size_t swarm_run(const Swarm& swarm, Objective objective, std::uint64_t key,
                      std::uint64_t generation, std::size_t generations, double* x, double* v,
                      double* best_x, double* best_f, double* f, std::uint32_t* guide, Best best) {
  for (std::size_t g = 0; g < generations; ++g) {
    evaluate(objective, x, swarm.n, swarm.box.d, f);
    take_better(best_x, best_f, x, f, swarm.n, swarm.box.d, true);
    const bool ends = note_best(best, x, f, swarm.n, swarm.box.d);
    swarm_move(swarm, generation_key(key, generation + g), best_x, best_f, x, v, guide);
    if (ends) return g + 1;
  }
  return generations;
}

void ga_parents(const Genetic& ga, std::uint64_t key, const double* f, std::uint32_t* parents) {
  const Stream s(key, std::uint64_t{1} << 40);
  std::uint32_t draw = 0;
  for (std::size_t i = 0; i < ga.children; ++i) {
    std::uint32_t winner = below(s, draw++, ga.n);
    for (std::size_t rival = 1; rival < ga.tournament; ++rival) {
      const std::uint32_t other = below(s, draw++, ga.n);
      if (f[other] < f[winner]) winner = other;
    }
    parents[i] = winner;
  }
}

void ga_children(const Genetic& ga, std::uint64_t key, const double* x,
                 const std::uint32_t* parents, double* child) {
  const std::size_t pairs = ceil_div(ga.children, 2);
  for_rows(pairs, 2 * ga.box.d, [&, key, x, parents](std::size_t first, std::size_t last) {
    PAROPT_DISPATCH(ga_rows(ga, key, x, parents, child, first, last));
  });
}

void ga_survive(const Genetic& ga, double* x, double* f, const double* child, const double* child_f,
                std::uint32_t* places, double* values) {
  const std::size_t n = ga.n, m = ga.children, d = ga.box.d;
  std::memcpy(values, f, n * sizeof(double));
  std::memcpy(values + n, child_f, m * sizeof(double));
  const Survivors survivors(values, ga.truncation ? n + m : n, ga.truncation ? n : ga.elite);
  std::uint32_t *gap = places, *comer = places + n;
  std::size_t gaps = 0, comers = 0, ties = survivors.ties;
  for (std::size_t i = 0; i < n; ++i) {
    gap[gaps] = static_cast<std::uint32_t>(i);
    gaps += !survivors.lives(f[i], ties);
  }
  for (std::size_t i = 0; i < m; ++i) {
    comer[comers] = static_cast<std::uint32_t>(i);
    comers += !ga.truncation || survivors.lives(child_f[i], ties);
  }
  for (std::size_t i = 0; i < gaps; ++i) {
    f[gap[i]] = child_f[comer[i]];
    std::memcpy(x + gap[i] * d, child + comer[i] * d, d * sizeof(double));
  }
}

std::size_t ga_run(const Genetic& ga, Objective objective, std::uint64_t key,
                   std::uint64_t generation, std::size_t generations, double* x, double* f,
                   double* child, double* child_f, std::uint32_t* parents, std::uint32_t* places,
                   double* values, Best best) {
  for (std::size_t g = 0; g < generations; ++g) {
    const std::uint64_t now = generation_key(key, generation + g);
    ga_parents(ga, now, f, parents);
    ga_children(ga, now, x, parents, child);
    evaluate(objective, child, ga.children, ga.box.d, child_f);
    ga_survive(ga, x, f, child, child_f, places, values);
    if (note_best(best, child, child_f, ga.children, ga.box.d)) return g + 1;
  }
  return generations;
}

}  // namespace paropt
