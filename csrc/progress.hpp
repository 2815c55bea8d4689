// Reductions that go on while their caller computes: a queue of them and a thread that does them.
//
// A thread, because MPI libraries move a non-blocking collective on only while somebody calls them.
// Jobs run one after the other in the order in which they were started, which therefore must be the
// same on all ranks. The thread calls MPI beside its caller: that needs MPI_THREAD_MULTIPLE.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace paropt {

class Job {
 public:
  explicit Job(std::function<std::size_t()> work) : work_(std::move(work)) {}

  void run() {
    try {
      result_ = work_();
    } catch (...) {
      error_ = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    ended_.notify_all();
  }

  bool done() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  // Wait for the end and return what the work returned; rethrow what it threw, every time.
  std::size_t wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
    return result_;
  }

 private:
  std::function<std::size_t()> work_;
  std::size_t result_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::exception_ptr error_;
  bool done_ = false;
};

class ProgressThread {
 public:
  ProgressThread() : thread_([this] { loop(); }) {}
  // Ends when the queue is empty; a job under way is waited for (its waits have deadlines).
  ~ProgressThread() { stop(); }

  std::shared_ptr<Job> start(std::function<std::size_t()> work) {
    auto job = std::make_shared<Job>(std::move(work));
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(job);
    arrived_.notify_one();
    return job;
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      arrived_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void loop() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        arrived_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job->run();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace paropt
