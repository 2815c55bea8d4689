#include "population.hpp"

#include <pybind11/numpy.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "../population.hpp"
#include "../tour.hpp"

namespace py = pybind11;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Doubles = Array<double>;
using Indices = Array<std::uint32_t>;

void require(bool fine, const char* what) {
  if (!fine) throw py::value_error(what);
}

template <class Call>
auto unlocked(Call call) {
  const py::gil_scoped_release release;
  return call();
}

template <class T>
std::size_t rows(const Array<T>& array) {
  return static_cast<std::size_t>(array.shape(0));
}

template <class T>
std::size_t columns(const Array<T>& array) {
  require(array.ndim() == 2, "array must have two dimensions");
  return static_cast<std::size_t>(array.shape(1));
}

// The numbers of an array that must have this shape; d = 0 means one dimension.
template <class T>
const T* input(const Array<T>& array, std::size_t n, std::size_t d) {
  require(array.ndim() == (d == 0 ? 1 : 2) && rows(array) == n && (d == 0 || columns(array) == d),
          "arrays must have the shapes that belong together");
  require(reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) == 0,
          "arrays must be aligned");
  return array.data();
}

template <class T>
T* output(Array<T>& array, std::size_t n, std::size_t d) {
  input(array, n, d);
  return array.mutable_data();  // throws when read-only
}

void require_below(const Indices& indices, std::size_t n) {
  const std::uint32_t* data = indices.data();
  for (py::ssize_t i = 0; i < indices.size(); ++i) require(data[i] < n, "index is out of range");
}

void require_sizes(std::size_t n, std::size_t d, std::size_t least) {
  require(n >= least && n <= paropt::kMostMembers, "the number of rows is out of range");
  require(d >= 1 && d < paropt::kMostMembers, "the number of columns is out of range");
}

template <class E>
E choice(int value, int count) {
  require(value >= 0 && value < count, "a setting is out of range");
  return static_cast<E>(value);
}

paropt::Objective objective_of(int id) {
  return choice<paropt::Objective>(id, paropt::kObjectives);
}

paropt::Box box_of(const Doubles& lower, const Doubles& upper) {
  const std::size_t d = rows(lower);
  return {input(lower, d, 0), input(upper, d, 0), d};
}

using BestSoFar = std::tuple<Doubles, Doubles, double>;  // a row, its value, the target

paropt::Best best_of(BestSoFar& best, std::size_t d) {
  auto& [x, f, target] = best;
  return {output(x, d, 0), output(f, 1, 0), target};
}

void evaluate(int objective, const Doubles& x, Doubles& f) {
  const std::size_t m = rows(x), d = columns(x);
  require_sizes(m, d, 0);
  const paropt::Objective o = objective_of(objective);
  const double* in = input(x, m, d);
  double* out = output(f, m, 0);
  unlocked([=] { paropt::evaluate(o, in, m, d, out); });
}

void normals(std::uint64_t key, Doubles& out) {
  const std::size_t m = rows(out), d = columns(out);
  require_sizes(m, d, 0);
  double* o = output(out, m, d);
  unlocked([=] { paropt::normals(key, m, d, o); });
}

void take_better(Doubles& x, Doubles& f, const Doubles& other, const Doubles& other_f,
                 bool strict) {
  const std::size_t n = rows(x), d = columns(x);
  double *to = output(x, n, d), *to_f = output(f, n, 0);
  const double *from = input(other, n, d), *from_f = input(other_f, n, 0);
  unlocked([=] { paropt::take_better(to, to_f, from, from_f, n, d, strict); });
}

paropt::DifferentialEvolution de_of(const Doubles& lower, const Doubles& upper, int mutation,
                                    const Doubles& archive, const Indices& guides,
                                    const Doubles& weight, const Doubles& rate) {
  const std::size_t n = rows(weight), d = rows(lower), archived = rows(archive);
  require_sizes(n + archived, d, 4);
  require(n >= 4, "the number of rows is out of range");
  const auto kind = choice<paropt::Mutation>(mutation, 3);
  require_below(guides, n);
  require(kind == paropt::Mutation::rand_1 || rows(guides) > 0, "there must be a guide");
  return {box_of(lower, upper),
          n,
          kind,
          input(archive, archived, d),
          archived,
          input(guides, rows(guides), 0),
          rows(guides),
          input(weight, n, 0),
          input(rate, n, 0)};
}

void de_trials(const Doubles& lower, const Doubles& upper, int mutation, const Doubles& archive,
               const Indices& guides, const Doubles& weight, const Doubles& rate, std::uint64_t key,
               const Doubles& x, Doubles& trial) {
  const auto de = de_of(lower, upper, mutation, archive, guides, weight, rate);
  const double* in = input(x, de.n, de.box.d);
  double* out = output(trial, de.n, de.box.d);
  unlocked([=] { paropt::de_trials(de, key, in, out); });
}

std::size_t de_run(const Doubles& lower, const Doubles& upper, int mutation, const Doubles& weight,
                   const Doubles& rate, int objective, std::uint64_t key, std::uint64_t generation,
                   std::size_t generations, Doubles& x, Doubles& f, Doubles& trial,
                   Doubles& trial_f, BestSoFar best) {
  const Indices guide(1);
  *const_cast<std::uint32_t*>(guide.data()) = 0;
  const Doubles none(std::vector<py::ssize_t>{0, static_cast<py::ssize_t>(rows(lower))});
  const auto de = de_of(lower, upper, mutation, none, guide, weight, rate);
  const paropt::Objective o = objective_of(objective);
  double *px = output(x, de.n, de.box.d), *pf = output(f, de.n, 0);
  double *pt = output(trial, de.n, de.box.d), *ptf = output(trial_f, de.n, 0);
  const paropt::Best b = best_of(best, de.box.d);
  return unlocked(
      [=] { return paropt::de_run(de, o, key, generation, generations, px, pf, pt, ptf, b); });
}

using Coefficients = std::tuple<double, double, double>;  // inertia, own, social

paropt::Swarm swarm_of(const Doubles& lower, const Doubles& upper, const Indices& neighbours,
                       const Doubles& fastest, const Coefficients& coefficients, int bounds) {
  const std::size_t n = rows(neighbours), k = columns(neighbours), d = rows(lower);
  require_sizes(n, d, 1);
  require_below(neighbours, n);
  const auto [inertia, own, social] = coefficients;
  return {box_of(lower, upper),
          n,
          k == 0 ? neighbours.data() : input(neighbours, n, k),
          k,
          input(fastest, d, 0),
          inertia,
          own,
          social,
          choice<paropt::Bounds>(bounds, 3)};
}

void swarm_move(const Doubles& lower, const Doubles& upper, const Indices& neighbours,
                const Doubles& fastest, const Coefficients& coefficients, int bounds,
                std::uint64_t key, const Doubles& best_x, const Doubles& best_f, Doubles& x,
                Doubles& v, Indices& guide) {
  const auto swarm = swarm_of(lower, upper, neighbours, fastest, coefficients, bounds);
  const std::size_t n = swarm.n, d = swarm.box.d;
  const double *bx = input(best_x, n, d), *bf = input(best_f, n, 0);
  double *px = output(x, n, d), *pv = output(v, n, d);
  std::uint32_t* g = output(guide, n, 0);
  unlocked([=] { paropt::swarm_move(swarm, key, bx, bf, px, pv, g); });
}

std::size_t swarm_run(const Doubles& lower, const Doubles& upper, const Indices& neighbours,
                      const Doubles& fastest, const Coefficients& coefficients, int bounds,
                      int objective, std::uint64_t key, std::uint64_t generation,
                      std::size_t generations, Doubles& x, Doubles& v, Doubles& best_x,
                      Doubles& best_f, Doubles& f, Indices& guide, BestSoFar best) {
  const auto swarm = swarm_of(lower, upper, neighbours, fastest, coefficients, bounds);
  const std::size_t n = swarm.n, d = swarm.box.d;
  const paropt::Objective o = objective_of(objective);
  double *px = output(x, n, d), *pv = output(v, n, d), *bx = output(best_x, n, d);
  double *bf = output(best_f, n, 0), *pf = output(f, n, 0);
  std::uint32_t* g = output(guide, n, 0);
  const paropt::Best b = best_of(best, d);
  return unlocked([=] {
    return paropt::swarm_run(swarm, o, key, generation, generations, px, pv, bx, bf, pf, g, b);
  });
}

using Operator = std::tuple<int, double, double>;  // kind, rate, index

paropt::Genetic genetic_of(const Doubles& lower, const Doubles& upper, std::size_t n,
                           std::size_t children, std::size_t elite, std::size_t tournament,
                           bool truncation, const Operator& crossover, const Operator& mutation) {
  const std::size_t d = rows(lower);
  require_sizes(n, d, 1);
  require_sizes(children, d, 1);
  require(truncation || children + elite == n, "children and elite must make the population");
  require(elite <= n && tournament >= 1, "a setting is out of range");
  const auto [cross, cross_rate, cross_index] = crossover;
  const auto [mutate, mutate_rate, mutate_index] = mutation;
  return {box_of(lower, upper),
          n,
          children,
          elite,
          tournament,
          truncation,
          choice<paropt::Crossover>(cross, 2),
          cross_rate,
          cross_index,
          choice<paropt::Deviation>(mutate, 2),
          mutate_rate,
          mutate_index};
}

void ga_parents(std::size_t tournament, std::uint64_t key, const Doubles& f, Indices& parents) {
  require(tournament >= 1, "a setting is out of range");
  paropt::Genetic ga{};
  ga.n = rows(f);
  ga.children = rows(parents);
  ga.tournament = tournament;
  require_sizes(ga.n, 1, 1);
  const double* pf = input(f, ga.n, 0);
  std::uint32_t* out = output(parents, ga.children, 0);
  unlocked([=] { paropt::ga_parents(ga, key, pf, out); });
}

void ga_children(const Doubles& lower, const Doubles& upper, const Operator& crossover,
                 const Operator& mutation, std::uint64_t key, const Doubles& x,
                 const Indices& parents, Doubles& child) {
  const std::size_t m = rows(child), n = rows(x);
  const auto ga = genetic_of(lower, upper, n, m, 0, 1, true, crossover, mutation);
  const double* px = input(x, n, ga.box.d);
  const std::uint32_t* pp = input(parents, m, 0);
  require_below(parents, n);
  double* out = output(child, m, ga.box.d);
  unlocked([=] { paropt::ga_children(ga, key, px, pp, out); });
}

void ga_survive(std::size_t elite, bool truncation, Doubles& x, Doubles& f, const Doubles& child,
                const Doubles& child_f, Indices& places, Doubles& values) {
  paropt::Genetic ga{};
  ga.n = rows(x);
  ga.children = rows(child);
  ga.elite = elite;
  ga.truncation = truncation;
  ga.box.d = columns(x);
  require(elite <= ga.n && (truncation || elite + ga.children == ga.n),
          "children and elite must make the population");
  double *px = output(x, ga.n, ga.box.d), *pf = output(f, ga.n, 0);
  const double *pc = input(child, ga.children, ga.box.d), *pcf = input(child_f, ga.children, 0);
  std::uint32_t* pp = output(places, ga.n + ga.children, 0);
  double* pv = output(values, ga.n + ga.children, 0);
  unlocked([=] { paropt::ga_survive(ga, px, pf, pc, pcf, pp, pv); });
}

std::size_t ga_run(const Doubles& lower, const Doubles& upper, std::size_t elite,
                   std::size_t tournament, bool truncation, const Operator& crossover,
                   const Operator& mutation, int objective, std::uint64_t key,
                   std::uint64_t generation, std::size_t generations, Doubles& x, Doubles& f,
                   Doubles& child, Doubles& child_f, Indices& parents, Indices& places,
                   Doubles& values, BestSoFar best) {
  const std::size_t n = rows(x), m = rows(child);
  const auto ga =
      genetic_of(lower, upper, n, m, elite, tournament, truncation, crossover, mutation);
  const paropt::Objective o = objective_of(objective);
  double *px = output(x, n, ga.box.d), *pf = output(f, n, 0);
  double *pc = output(child, m, ga.box.d), *pcf = output(child_f, m, 0);
  std::uint32_t *pp = output(parents, m, 0), *pl = output(places, n + m, 0);
  double* pv = output(values, n + m, 0);
  const paropt::Best b = best_of(best, ga.box.d);
  return unlocked([=] {
    return paropt::ga_run(ga, o, key, generation, generations, px, pf, pc, pcf, pp, pl, pv, b);
  });
}

void require_tours(const Indices& tours, std::size_t n) {
  require(n >= 1 && columns(tours) == n, "tours must have as many columns as there are cities");
  require_below(tours, n);
  const std::uint32_t* city = tours.data();
  for (std::size_t i = 0; i < rows(tours); ++i) {
    std::vector<bool> seen(n, false);
    for (std::size_t j = 0; j < n; ++j) {
      const std::uint32_t c = city[i * n + j];
      require(!seen[c], "a tour must visit each city once");
      seen[c] = true;
    }
  }
}

const std::uint32_t* near_of(const Indices& near, std::size_t n) {
  require_sizes(n, columns(near), 2);
  require_below(near, n);
  return input(near, n, columns(near));
}

void improve_tours(const Doubles& distances, const Indices& near, std::size_t kicks,
                   std::uint64_t key, Indices& tours) {
  const std::size_t n = rows(distances), k = columns(near), m = rows(tours);
  const double* d = input(distances, n, n);
  const std::uint32_t* c = near_of(near, n);
  require_tours(tours, n);
  std::uint32_t* t = output(tours, m, n);
  unlocked([=] { paropt::improve_tours(d, n, c, k, kicks, key, m, t); });
}

void ant_tours(const Doubles& attraction, const Indices& near, std::uint64_t key, Indices& tours) {
  const std::size_t n = rows(attraction), k = columns(near), m = rows(tours);
  const double* a = input(attraction, n, n);
  const std::uint32_t* c = near_of(near, n);
  std::uint32_t* t = output(tours, m, n);
  unlocked([=] { paropt::ant_tours(a, n, c, k, key, m, t); });
}

}  // namespace

void define_population(py::module_& m) {
  m.def("generation_key", &paropt::generation_key);
  m.def("evaluate", &evaluate, py::arg("objective"), py::arg("x").noconvert(),
        py::arg("f").noconvert());
  m.def("normals", &normals, py::arg("key"), py::arg("out").noconvert());
  m.def("take_better", &take_better, py::arg("x").noconvert(), py::arg("f").noconvert(),
        py::arg("other").noconvert(), py::arg("other_f").noconvert(), py::arg("strict"));
  m.def("de_trials", &de_trials, py::arg("lower").noconvert(), py::arg("upper").noconvert(),
        py::arg("mutation"), py::arg("archive").noconvert(), py::arg("guides").noconvert(),
        py::arg("weight").noconvert(), py::arg("rate").noconvert(), py::arg("key"),
        py::arg("x").noconvert(), py::arg("trial").noconvert());
  m.def("de_run", &de_run, py::arg("lower").noconvert(), py::arg("upper").noconvert(),
        py::arg("mutation"), py::arg("weight").noconvert(), py::arg("rate").noconvert(),
        py::arg("objective"), py::arg("key"), py::arg("generation"), py::arg("generations"),
        py::arg("x").noconvert(), py::arg("f").noconvert(), py::arg("trial").noconvert(),
        py::arg("trial_f").noconvert(), py::arg("best"));
  m.def("swarm_move", &swarm_move, py::arg("lower").noconvert(), py::arg("upper").noconvert(),
        py::arg("neighbours").noconvert(), py::arg("fastest").noconvert(), py::arg("coefficients"),
        py::arg("bounds"), py::arg("key"), py::arg("best_x").noconvert(),
        py::arg("best_f").noconvert(), py::arg("x").noconvert(), py::arg("v").noconvert(),
        py::arg("guide").noconvert());
  m.def("swarm_run", &swarm_run, py::arg("lower").noconvert(), py::arg("upper").noconvert(),
        py::arg("neighbours").noconvert(), py::arg("fastest").noconvert(), py::arg("coefficients"),
        py::arg("bounds"), py::arg("objective"), py::arg("key"), py::arg("generation"),
        py::arg("generations"), py::arg("x").noconvert(), py::arg("v").noconvert(),
        py::arg("best_x").noconvert(), py::arg("best_f").noconvert(), py::arg("f").noconvert(),
        py::arg("guide").noconvert(), py::arg("best"));
  m.def("improve_tours", &improve_tours, py::arg("distances").noconvert(),
        py::arg("near").noconvert(), py::arg("kicks"), py::arg("key"),
        py::arg("tours").noconvert());
  m.def("ant_tours", &ant_tours, py::arg("attraction").noconvert(), py::arg("near").noconvert(),
        py::arg("key"), py::arg("tours").noconvert());
  m.def("ga_parents", &ga_parents, py::arg("tournament"), py::arg("key"), py::arg("f").noconvert(),
        py::arg("parents").noconvert());
  m.def("ga_children", &ga_children, py::arg("lower").noconvert(), py::arg("upper").noconvert(),
        py::arg("crossover"), py::arg("mutation"), py::arg("key"), py::arg("x").noconvert(),
        py::arg("parents").noconvert(), py::arg("child").noconvert());
  m.def("ga_survive", &ga_survive, py::arg("elite"), py::arg("truncation"),
        py::arg("x").noconvert(), py::arg("f").noconvert(), py::arg("child").noconvert(),
        py::arg("child_f").noconvert(), py::arg("places").noconvert(),
        py::arg("values").noconvert());
  m.def("ga_run", &ga_run, py::arg("lower").noconvert(), py::arg("upper").noconvert(),
        py::arg("elite"), py::arg("tournament"), py::arg("truncation"), py::arg("crossover"),
        py::arg("mutation"), py::arg("objective"), py::arg("key"), py::arg("generation"),
        py::arg("generations"), py::arg("x").noconvert(), py::arg("f").noconvert(),
        py::arg("child").noconvert(), py::arg("child_f").noconvert(),
        py::arg("parents").noconvert(), py::arg("places").noconvert(),
        py::arg("values").noconvert(), py::arg("best"));
}
