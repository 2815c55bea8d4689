// How a rank waits for another: it spins for the length of a message, then gives its core away,
// and after a deadline it gives up.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "common.hpp"

namespace paropt {

// Becomes paropt_hpc.errors.CollectiveTimeout.
struct TimedOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Becomes paropt_hpc.errors.CollectiveMismatch.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline void pause_core() {
#if PAROPT_X86
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Where ranks share cores, one that spins while another needs its core delays what it waits for.
constexpr int kSpins = 2000;
constexpr int kSpinsSharedCores = 50;

// What a wait may cost, and what all waits have cost so far. One per thread that waits.
struct Waiting {
  double timeout = 0;           // seconds until TimedOut is thrown; 0 waits for ever
  int spins = kSpins;           // polls before the core is given away
  double yield_seconds = 0.01;  // time of giving it away before the thread sleeps between polls
  double seconds = 0;           // waited so far
  std::atomic<bool> cancelled{false};  // set by another thread: the wait ends as if too late
};

// Poll until ready() is true. On the deadline throws TimedOut with the text late() gives.
template <class Ready, class Late>
void wait_until(Waiting& waiting, Ready ready, Late late) {
  // A few polls that cost less than reading the clock.
  for (int poll = 0; poll < 20; ++poll) {
    if (ready()) return;
  }
  const Clock::time_point start = Clock::now();
  for (int spin = 0; spin < waiting.spins; ++spin) {
    if (ready()) {
      waiting.seconds += seconds_since(start);
      return;
    }
    pause_core();
  }
  while (!ready()) {
    const double waited = seconds_since(start);
    const bool late_now = waiting.timeout > 0 && waited > waiting.timeout;
    if (late_now || waiting.cancelled.load(std::memory_order_relaxed)) {
      waiting.seconds += waited;
      throw TimedOut(late());
    }
    if (waited < waiting.yield_seconds) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  waiting.seconds += seconds_since(start);
}

}  // namespace paropt
