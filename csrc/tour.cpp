#include "tour.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "common.hpp"
#include "stream.hpp"

namespace paropt {
namespace {

using City = std::uint32_t;

// A tour that can be changed by reversals, which a log can undo.
class Tour {
 public:
  Tour(const double* distances, std::size_t n, City* order)
      : distances_(distances), n_(static_cast<City>(n)), order_(order), place_(n) {
    for (City i = 0; i < n_; ++i) place_[order_[i]] = i;
  }

  City next(City c) const { return order_[place_[c] + 1 == n_ ? 0 : place_[c] + 1]; }
  City previous(City c) const { return order_[place_[c] == 0 ? n_ - 1 : place_[c] - 1]; }
  City at(City place) const { return order_[place]; }
  double distance(City a, City b) const { return distances_[std::size_t{a} * n_ + b]; }

  // Reverse the path from city a on to city b, or the rest, which makes the same cycle.
  void reverse(City a, City b) {
    City i = place_[a], j = place_[b];
    City inside = (j >= i ? j - i : j + n_ - i) + 1;
    if (2 * inside > n_) {
      std::swap(i, j);
      i = i + 1 == n_ ? 0 : i + 1;
      j = j == 0 ? n_ - 1 : j - 1;
      inside = n_ - inside;
    }
    log_.emplace_back(i, inside);
    flip(i, inside);
  }

  // Reverse the path that starts behind `before` and goes from `from` to `to`. With d behind `to`,
  // that replaces the edges before-from and to-d by before-to and from-d.
  void turn(City before, City from, City to) {
    if (next(before) == from) {
      reverse(from, to);
    } else {
      reverse(to, from);
    }
  }

  std::size_t mark() const { return log_.size(); }
  void undo(std::size_t mark) {
    for (; log_.size() > mark; log_.pop_back()) flip(log_.back().first, log_.back().second);
  }
  void forget() { log_.clear(); }

 private:
  void flip(City i, City inside) {
    City j = i + inside - 1;
    if (j >= n_) j -= n_;
    for (City left = inside / 2; left > 0; --left) {
      std::swap(order_[i], order_[j]);
      place_[order_[i]] = i;
      place_[order_[j]] = j;
      i = i + 1 == n_ ? 0 : i + 1;
      j = j == 0 ? n_ - 1 : j - 1;
    }
  }

  const double* distances_;
  City n_;
  City* order_;
  std::vector<City> place_;
  std::vector<std::pair<City, City>> log_;  // first place, cities
};

// Cities around which the tour may be improved, each at most once.
class Queue {
 public:
  explicit Queue(std::size_t n) : waiting_(n, 0) {}
  void push(City c) {
    if (waiting_[c]) return;
    waiting_[c] = 1;
    cities_.push_back(c);
  }
  bool pop(City& c) {
    if (cities_.empty()) return false;
    c = cities_.back();
    cities_.pop_back();
    waiting_[c] = 0;
    return true;
  }

 private:
  std::vector<std::uint8_t> waiting_;
  std::vector<City> cities_;
};

constexpr double kLeast = 1e-9;  // gains below are rounding errors
// How many neighbours are tried at each depth of a move.
constexpr std::size_t kBreadth[] = {5, 3, 1};
constexpr std::size_t kDepth = sizeof kBreadth / sizeof *kBreadth;

// S. Lin and B. W. Kernighan, "An effective heuristic algorithm for the traveling-salesman
// problem", Operations Research 21, 1973, with moves that are chains of reversals; chained by small
// double bridges: D. Applegate, W. Cook and A. Rohe, "Chained Lin-Kernighan for large traveling
// salesman problems", INFORMS Journal on Computing 15, 2003.
class LocalSearch {
 public:
  LocalSearch(const double* distances, std::size_t n, const City* near, std::size_t k, City* order)
      : tour_(distances, n, order), queue_(n), near_(near), n_(static_cast<City>(n)), k_(k) {}

  void optimise() {
    for (City c = n_; c-- > 0;) queue_.push(c);
    settle();
    tour_.forget();
  }

  // Exchange two neighbouring sections of up to 50 cities, improve around the cuts, and undo it all
  // if the tour became longer.
  void kick(Stream s, std::uint32_t number) {
    const City longest = std::min<City>(50, (n_ - 2) / 2), start = below(s, 3 * number, n_);
    const City first = 1 + below(s, 3 * number + 1, longest);
    const City second = first + 1 + below(s, 3 * number + 2, longest);
    const City a = city(start), b = city(start + 1), c = city(start + first),
               d = city(start + first + 1), e = city(start + second), f = city(start + second + 1);
    // a [b..c] [d..e] f becomes a [d..e] [b..c] f.
    double gain = tour_.distance(a, b) + tour_.distance(c, d) + tour_.distance(e, f) -
                  tour_.distance(a, d) - tour_.distance(e, b) - tour_.distance(c, f);
    tour_.turn(a, b, e);
    tour_.turn(a, e, d);
    tour_.turn(e, c, b);
    for (const City changed : {a, b, c, d, e, f}) queue_.push(changed);
    gain += settle();
    if (gain < -kLeast) tour_.undo(0);
    tour_.forget();
  }

 private:
  City city(City place) const { return tour_.at(place % n_); }

  // Improve around all cities in the queue; return the gain.
  double settle() {
    double total = 0;
    for (City c; queue_.pop(c);) {
      for (const bool forward : {true, false}) {
        const City b = forward ? tour_.next(c) : tour_.previous(c);
        total += chain(c, b, tour_.distance(c, b), 0);
      }
    }
    return total;
  }

  struct Step {
    double further;  // gain when the closing edge is not counted
    City c, d;
  };

  // The most promising steps: give b another neighbour c and cut the edge to the d between b and c.
  std::size_t steps(City a, City b, double open, std::size_t most, Step* best) const {
    const bool forward = tour_.next(a) == b;
    std::size_t found = 0;
    for (std::size_t i = 0; i < k_; ++i) {
      const City c = near_[b * k_ + i];
      const double left = open - tour_.distance(b, c);
      if (left <= kLeast) break;
      const City d = forward ? tour_.previous(c) : tour_.next(c);
      if (c == a || d == b) continue;
      const Step step = {left + tour_.distance(d, c), c, d};
      std::size_t at = found < most ? found++ : most;
      for (; at > 0 && best[at - 1].further < step.further; --at) {
        if (at < most) best[at] = best[at - 1];
      }
      if (at < most) best[at] = step;
    }
    return found;
  }

  // The tour has the edge a-b; `open` is what has been gained when it is not counted. Change b's
  // other end, and go on from there. Keep the first shorter tour and return its gain, or leave the
  // tour as it was and return 0.
  double chain(City a, City b, double open, std::size_t depth) {
    Step best[kBreadth[0]] = {};
    const std::size_t found = steps(a, b, open, kBreadth[depth], best);
    for (std::size_t i = 0; i < found; ++i) {
      const auto [further, c, d] = best[i];
      double gain = further - tour_.distance(d, a);
      if (gain <= kLeast && depth + 1 == kDepth) continue;
      const std::size_t mark = tour_.mark();
      tour_.turn(a, b, d);
      if (gain <= kLeast) gain = chain(a, d, further, depth + 1);
      if (gain > kLeast) {
        for (const City changed : {a, b, c, d}) queue_.push(changed);
        return gain;
      }
      tour_.undo(mark);
    }
    return 0;
  }

  Tour tour_;
  Queue queue_;
  const City* near_;
  City n_;
  std::size_t k_;
};

// Marks of visited cities that are cleared by counting on.
class Visited {
 public:
  explicit Visited(std::size_t n) : seen_(n, 0) {}
  void clear() { ++now_; }
  void add(City c) { seen_[c] = now_; }
  bool has(City c) const { return seen_[c] == now_; }

 private:
  std::vector<std::uint32_t> seen_;
  std::uint32_t now_ = 0;
};

// The next city of an ant: near ones by chance, else the most attractive one.
City next_city(const double* attraction, std::size_t n, const City* near, std::size_t k, City here,
               const Visited& visited, double chance) {
  const double* drawn = attraction + here * n;
  double total = 0;
  for (std::size_t i = 0; i < k; ++i) {
    const City c = near[here * k + i];
    if (!visited.has(c)) total += drawn[c];
  }
  double left = chance * total;
  City last = static_cast<City>(n);
  for (std::size_t i = 0; i < k && total > 0; ++i) {
    const City c = near[here * k + i];
    if (visited.has(c)) continue;
    last = c;
    if ((left -= drawn[c]) < 0) break;
  }
  if (last < n) return last;
  for (City c = 0; c < n; ++c) {
    if (!visited.has(c) && (last == n || drawn[c] > drawn[last])) last = c;
  }
  return last;
}

}  // namespace

double tour_length(const double* distances, std::size_t n, const std::uint32_t* tour) {
  double length = 0;
  for (std::size_t i = 0; i < n; ++i) length += distances[tour[i] * n + tour[(i + 1) % n]];
  return length;
}

void improve_tours(const double* distances, std::size_t n, const std::uint32_t* near, std::size_t k,
                   std::size_t kicks, std::uint64_t key, std::size_t m, std::uint32_t* tours) {
  if (n < 5) return;  // too short for a move
  [[maybe_unused]] const int threads = threads_for(m, 1);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (std::size_t i = 0; i < m; ++i) {
    LocalSearch search(distances, n, near, k, tours + i * n);
    search.optimise();
    const Stream s(key, i);
    for (std::size_t kick = 0; n >= 8 && kick < kicks; ++kick) {
      search.kick(s, static_cast<std::uint32_t>(kick));
    }
  }
}

void ant_tours(const double* attraction, std::size_t n, const std::uint32_t* near, std::size_t k,
               std::uint64_t key, std::size_t m, std::uint32_t* tours) {
  Visited visited(n);
  for (std::size_t i = 0; i < m; ++i) {
    const Stream s(key, i);
    visited.clear();
    City here = below(s, 0, n);
    for (std::size_t j = 0;; ++j) {
      tours[i * n + j] = here;
      visited.add(here);
      if (j + 1 == n) break;
      const double chance = word(s, static_cast<std::uint32_t>(j + 1)) * 0x1p-32;
      here = next_city(attraction, n, near, k, here, visited, chance);
    }
  }
}

}  // namespace paropt
