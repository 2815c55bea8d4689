// Room for what a kernel needs between its input and its output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace paropt {

// Memory that stays with the calling thread, as a thread_local: getting it anew from the system
// would cost more page faults than the whole kernel takes. A piece that was far too large many
// times in a row is given back; not at once, since buckets large and small may take turns.
class Workspace {
 public:
  std::uint8_t* room(std::size_t bytes) {
    idle_ = bytes < bytes_ / 8 ? idle_ + 1 : 0;
    if (bytes > bytes_ || idle_ > kPatience) {
      memory_.reset();
      memory_.reset(new std::uint8_t[bytes]);
      bytes_ = bytes;
      idle_ = 0;
    }
    return memory_.get();
  }

 private:
  static constexpr int kPatience = 64;
  std::unique_ptr<std::uint8_t[]> memory_;
  std::size_t bytes_ = 0;
  int idle_ = 0;
};

}  // namespace paropt
