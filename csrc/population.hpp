// One generation of a population of real vectors: its random numbers, its variation, its values.
//
// A population is n rows of d columns, contiguous. Random numbers come from streams that are named
// by a key, an individual and a column, so that results depend neither on the number of threads nor
// on the instruction set. A key names a generation; generation_key() makes it. All buffers belong
// to the caller and do not overlap unless a line says so.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paropt {

// Numbers below 2^32, which are the random words' range.
constexpr std::size_t kMostMembers = std::size_t{1} << 31;

std::uint64_t generation_key(std::uint64_t key, std::uint64_t generation);

struct Box {
  const double *lower, *upper;  // of the d columns
  std::size_t d;
};

// Functions to minimise, in kernels/reference_population.py with their formulas.
enum class Objective : int { sphere, rastrigin, rosenbrock, ackley };
constexpr int kObjectives = 4;

// f[i] = objective(row i) for i < m.
void evaluate(Objective objective, const double* x, std::size_t m, std::size_t d, double* f);

// Independent standard normal numbers: row i of out (m x d) is a stream of its own.
void normals(std::uint64_t key, std::size_t m, std::size_t d, double* out);

// Where other_f[i] <= f[i] (or <, if strict): f[i] = other_f[i], row i of x = row i of other.
void take_better(double* x, double* f, const double* other, const double* other_f, std::size_t n,
                 std::size_t d, bool strict);

// The best row ever told, which a run of generations keeps up to date, and the value at which it
// may end before its time.
struct Best {
  double *x, *f;  // a row of d numbers and its value
  double target;
};

enum class Mutation : int { rand_1, best_1, current_to_best_1 };

// Trial vectors of differential evolution. Columns that leave the box bounce half-way back.
struct DifferentialEvolution {
  Box box;
  std::size_t n;  // at least 4
  Mutation mutation;
  const double* archive;  // archived x d rows that the last difference may also take
  std::size_t archived;
  const std::uint32_t* guides;  // the members that may be the best one; none for rand_1
  std::size_t guided;
  const double *weight, *rate;  // F and CR of each member
};
void de_trials(const DifferentialEvolution& de, std::uint64_t key, const double* x, double* trial);

// So many generations, fewer if the target is reached; those after the first have the next
// numbers. Return how many. guides has room for one.
std::size_t de_run(DifferentialEvolution de, Objective objective, std::uint64_t key,
                   std::uint64_t generation, std::size_t generations, double* x, double* f,
                   double* trial, double* trial_f, Best best);

enum class Bounds : int { reflect, absorb, periodic };

struct Swarm {
  Box box;
  std::size_t n;
  const std::uint32_t* neighbours;  // n x neighbouring members whose best a particle knows; or all
  std::size_t neighbouring;         // 0: all
  const double* fastest;            // largest speed of the d columns
  double inertia, own, social;
  Bounds bounds;
};
// Move x and v by the bests of the particles. guide is scratch of n.
void swarm_move(const Swarm& swarm, std::uint64_t key, const double* best_x, const double* best_f,
                double* x, double* v, std::uint32_t* guide);
std::size_t swarm_run(const Swarm& swarm, Objective objective, std::uint64_t key,
                      std::uint64_t generation, std::size_t generations, double* x, double* v,
                      double* best_x, double* best_f, double* f, std::uint32_t* guide, Best best);

enum class Crossover : int { simulated_binary, blend };
enum class Deviation : int { polynomial, gaussian };

struct Genetic {
  Box box;
  std::size_t n, children, elite;  // members, children of a generation, members that always stay
  std::size_t tournament;          // rivals for each parent
  bool truncation;                 // the best of members and children stay, else all children
  Crossover crossover;
  double crossover_rate, crossover_index;  // of a pair; eta, or alpha of the blend
  Deviation deviation;
  double mutation_rate, mutation_index;  // of a column; eta, or the share of the range as sigma
};
// Parents by tournaments: parents[i] < n for i < children, f being the values of the members.
void ga_parents(const Genetic& ga, std::uint64_t key, const double* f, std::uint32_t* parents);
// Children 2i and 2i + 1 come from the parents of these numbers.
void ga_children(const Genetic& ga, std::uint64_t key, const double* x,
                 const std::uint32_t* parents, double* child);
// Who lives on, in place: children take the rows of members that do not. places and values are
// scratch of n + children each.
void ga_survive(const Genetic& ga, double* x, double* f, const double* child, const double* child_f,
                std::uint32_t* places, double* values);
std::size_t ga_run(const Genetic& ga, Objective objective, std::uint64_t key,
                   std::uint64_t generation, std::size_t generations, double* x, double* f,
                   double* child, double* child_f, std::uint32_t* parents, std::uint32_t* places,
                   double* values, Best best);

}  // namespace paropt
