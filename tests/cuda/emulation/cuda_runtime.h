// A GPU that is none: the part of CUDA that the kernels use, as C++ on the CPU. Found in place of
// the toolkit's header of this name, it lets the very same sources compile and run without a GPU.
//
// A thread of a kernel is a fiber, and the fibers of a block run on one OS thread: one goes on
// until it waits for others, at a barrier or a warp operation. Blocks run one after the other, and
// streams do nothing; kernels are launched by one thread at a time. A wait that can never end is an
// error of the launch: threads at different barriers, a lane that exited while its warp waits for
// it.
//
// Under ThreadSanitizer every fiber counts as a thread of its own, whatever order they ran in: an
// access that only luck puts after another one is a race. What orders two accesses is what the
// CUDA documentation says: __syncthreads and __syncwarp do, among those who take part; shuffles and
// votes do not; atomics do not, unless there is a __threadfence on both sides (all fences are taken
// for one, so that a fence at the wrong place may go unseen).
//
// Memory of the device is memory of the host that ends at a page nobody may touch.
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define EMULATION_TSAN 1
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#else
#define EMULATION_TSAN 0
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
#endif

#ifndef __x86_64__
#error "the emulation switches stacks by x86-64 instructions"
#endif

// Save the registers that a function keeps and the stack in *from, and go on where `to` was saved.
extern "C" void emulation_switch(void** from, void* to);
asm(R"(
.text
.weak emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, . - emulation_switch
)");

// ---- words of the language ---------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static thread_local  // a block stays on one OS thread
#define __CUDACC_EMULATED__ 1

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---- threads -----------------------------------------------------------------------------------

namespace emulation {

constexpr unsigned kWarp = 32, kMostThreads = 1024, kMeetings = 8;
constexpr std::size_t kStack = EMULATION_TSAN ? 128 * 1024 : 64 * 1024;

// Whether what this thread of a kernel reads and writes is checked from now on.
inline void check_accesses([[maybe_unused]] bool on) {
#if EMULATION_TSAN
  if (on) {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  } else {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
#endif
}

// The bookkeeping of this file is no part of the program that is checked.
struct Unchecked {
  Unchecked() { check_accesses(false); }
  ~Unchecked() { check_accesses(true); }
};

struct Fiber {
  void* stack_pointer = nullptr;
  void* tsan = nullptr;
  std::unique_ptr<char[]> stack;
  bool running = false;  // within a kernel
};

// One operation of the lanes of a mask: it is complete when all have come.
struct Meeting {
  unsigned mask = 0, arrived = 0, left = 0;
  int operation = 0;
  std::uint64_t values[kWarp];
};

// Fibers of one block; the next block takes another team, since nothing orders the two.
struct Team {
  std::vector<Fiber> fibers;
};

struct Block {
  dim3 index, size, grid;
  unsigned alive = 0, current = 0, idle = 0;
  unsigned arrived = 0, generation = 0;
  int votes = 0, outcome[2] = {};
  char barrier[2];                                    // addresses for ThreadSanitizer
  Meeting meetings[kMostThreads / kWarp][kMeetings];  // of a warp at a time
  Team* team = nullptr;
  void* main_stack = nullptr;
  void* main_tsan = nullptr;
  const void* kernel = nullptr;
  void (*body)(const void*) = nullptr;
  std::string error;
};

struct State {
  Block block;
  Team teams[3];
  unsigned next_team = 0;
  std::string error;
  char start, finish, fence;  // addresses for ThreadSanitizer
};

inline State& state() {
  static State& state = *new State;  // for as long as the process lives
  return state;
}

inline Fiber& fiber() { return state().block.team->fibers[state().block.current]; }

inline void enter(unsigned number, void** from) {
  Fiber& next = state().block.team->fibers[number];
  threadIdx.x = state().block.current = number;
  void* to = next.stack_pointer;  // read by this thread, not by the next one
  __tsan_switch_to_fiber(next.tsan, 1);
  emulation_switch(from, to);
}

// Give up the thread: to the next one that is still running, or back to the launch.
inline void switch_away() {
  Block& block = state().block;
  Fiber& from = fiber();
  const unsigned threads = block.size.x;
  if (block.error.empty()) {
    for (unsigned step = 1; step <= threads; ++step) {
      const unsigned next = (block.current + step) % threads;
      if (!block.team->fibers[next].running) continue;
      if (next == block.current) return;
      enter(next, &from.stack_pointer);
      return;
    }
  }
  __tsan_switch_to_fiber(block.main_tsan, 1);
  emulation_switch(&from.stack_pointer, block.main_stack);
}

// End the launch with an error; the threads of the block are abandoned where they stand.
[[noreturn]] inline void fail(const std::string& what) {
  Block& block = state().block;
  block.error = what + " (block " + std::to_string(block.index.x) + ", thread " +
                std::to_string(block.current) + ")";
  switch_away();
  std::abort();
}

template <class Done>
void wait_until(Done done) {
  Block& block = state().block;
  while (!done()) {
    // Whoever makes progress sets this to zero: here nobody can any more.
    if (++block.idle > 2 * block.alive + 2) fail("threads wait for one another forever");
    switch_away();
  }
  block.idle = 0;
}

inline void release_barrier(Block& block) {
  if (block.alive == 0 || block.arrived < block.alive) return;
  block.arrived = 0;
  block.outcome[block.generation & 1] = block.votes;
  block.votes = 0;
  ++block.generation;
}

// The barrier of a block, which counts the threads that vote.
inline int barrier(bool vote) {
  const Unchecked unchecked;
  Block& block = state().block;
  const unsigned generation = block.generation;
  char* address = &block.barrier[generation & 1];
  __tsan_release(address);
  block.votes += vote;
  ++block.arrived;
  block.idle = 0;
  release_barrier(block);
  wait_until([&] { return block.generation != generation; });
  __tsan_acquire(address);
  return block.outcome[generation & 1];
}

// Meet the other lanes of the mask and return what all brought.
inline Meeting meet(int operation, unsigned mask, std::uint64_t value, bool orders = false) {
  const Unchecked unchecked;
  Block& block = state().block;
  const unsigned lane = block.current % kWarp, me = 1u << lane;
  if ((mask & me) == 0) fail("a lane takes part in an operation of others");
  auto& meetings = block.meetings[block.current / kWarp];
  Meeting* meeting = nullptr;
  for (Meeting& other : meetings) {
    if (other.mask == mask && other.arrived != mask) meeting = &other;
  }
  if (meeting == nullptr) {
    for (Meeting& other : meetings) {
      if (other.mask == 0) meeting = &other;
    }
    if (meeting == nullptr) fail("more operations of one warp at a time than the emulation has");
    *meeting = Meeting();
    meeting->mask = mask;
    meeting->operation = operation;
  }
  if (meeting->operation != operation) fail("lanes of one warp are at different operations");
  if (orders) __tsan_release(meeting);
  meeting->values[lane] = value;
  meeting->arrived |= me;
  block.idle = 0;
  wait_until([&] { return meeting->arrived == mask; });
  const Meeting result = *meeting;
  if (orders) __tsan_acquire(meeting);
  meeting->left |= me;
  if (meeting->left == mask) meeting->mask = 0;
  return result;
}

// The life of a thread, unchecked at its beginning and at its end, from which it never returns.
inline void run_thread() {
  State& here = state();
  __tsan_acquire(&here.start);
  check_accesses(true);
  here.block.body(here.block.kernel);
  check_accesses(false);
  __tsan_release(&here.finish);
  fiber().running = false;
  --here.block.alive;
  here.block.idle = 0;
  release_barrier(here.block);
  switch_away();
  std::abort();
}

inline void run_first_thread() {
  check_accesses(false);
  run_thread();
}

// A stack on which emulation_switch finds the registers and the place to return to.
inline void prepare(Fiber& fiber) {
  void (*entry)() = &run_thread;
  if (fiber.stack == nullptr) {
    fiber.stack.reset(new char[kStack]);
    fiber.tsan = __tsan_create_fiber(0);
    entry = &run_first_thread;
  }
  auto top = reinterpret_cast<std::uintptr_t>(fiber.stack.get() + kStack) & ~std::uintptr_t{15};
  void** slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;  // a place to return to keeps the stack aligned as by a call
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;
  fiber.stack_pointer = slot;
  fiber.running = true;
}

// Run the threads of a block. What is shared among them is the OS thread's.
inline void run_threads(Block& block) {
  blockIdx = block.index;
  blockDim = block.size;
  gridDim = block.grid;
  State& here = state();
  block.team = &here.teams[here.next_team++ % 3];
  if (block.team->fibers.size() < block.size.x) block.team->fibers.resize(block.size.x);
  for (Fiber& fiber : block.team->fibers) fiber.running = false;
  for (unsigned i = 0; i < block.size.x; ++i) prepare(block.team->fibers[i]);
  block.alive = block.size.x;
  block.idle = block.arrived = 0;
  block.votes = 0;
  for (auto& warp : block.meetings) {
    for (Meeting& meeting : warp) meeting.mask = 0;
  }
  block.main_tsan = __tsan_get_current_fiber();
  __tsan_release(&here.start);  // what this OS thread has begun with is there before the fibers
  enter(0, &block.main_stack);
}

// Under ThreadSanitizer a block has an OS thread of its own, so that nobody takes the memory that
// it shares for that of another block.
inline void run_block(Block& block) {
#if EMULATION_TSAN
  std::thread([&block] {
    const Unchecked unchecked;
    run_threads(block);
  }).join();
#else
  run_threads(block);
#endif
}

// Run a grid; the error that stopped it, or an empty text.
inline std::string run(dim3 grid, dim3 size, void (*body)(const void*), const void* kernel) {
  const Unchecked unchecked;
  State& here = state();
  Block& block = here.block;
  if (size.x == 0 || size.x > kMostThreads || size.x % kWarp != 0 || size.y != 1 || size.z != 1) {
    return "a block of " + std::to_string(size.x) + " threads";
  }
  if (grid.x == 0 || grid.y != 1 || grid.z != 1) return "an empty grid";
  block.size = size;
  block.grid = grid;
  block.body = body;
  block.kernel = kernel;
  block.error.clear();
  __tsan_release(&here.start);
  for (unsigned i = 0; i < grid.x && block.error.empty(); ++i) {
    block.index = dim3(i, 0, 0);
    run_block(block);
  }
  __tsan_acquire(&here.finish);
  if (!block.error.empty()) {
    for (Team& team : here.teams) team.fibers.clear();  // some stand where they were abandoned
  }
  return block.error;
}

}  // namespace emulation

inline void __syncthreads() { emulation::barrier(false); }
inline int __syncthreads_count(int vote) { return emulation::barrier(vote != 0); }
inline int __syncthreads_or(int vote) { return emulation::barrier(vote != 0) != 0; }
inline void __threadfence() {
  __tsan_acquire(&emulation::state().fence);
  __tsan_release(&emulation::state().fence);
}

// ---- warps -------------------------------------------------------------------------------------

inline void __syncwarp(unsigned mask = 0xffffffff) { emulation::meet(1, mask, 0, true); }

inline unsigned __ballot_sync(unsigned mask, int vote) {
  const auto meeting = emulation::meet(2, mask, vote != 0);
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0 && meeting.values[i] != 0) ballot |= 1u << i;
  }
  return ballot;
}
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) == mask; }

namespace emulation {

// The value of another lane; a lane that takes no part has nothing to read.
template <class T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "words of 4 or 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const Meeting meeting = meet(3, mask, bits);
  if ((mask >> source & 1) == 0) fail("a shuffle reads a lane that takes no part");
  std::memcpy(&value, &meeting.values[source], sizeof value);
  return value;
}

inline int lane() { return static_cast<int>(state().block.current % kWarp); }

}  // namespace emulation

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emulation::shuffle(mask, value,
                            (emulation::lane() & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = emulation::lane(), source = lane - static_cast<int>(by);
  return emulation::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = emulation::lane(), source = lane + static_cast<int>(by);
  return emulation::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  const int lane = emulation::lane(), source = lane ^ by;
  return emulation::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}

// ---- atomics: relaxed, as on the device --------------------------------------------------------

inline unsigned atomicAdd(unsigned* p, unsigned x) {
  return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long x) {
  return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
inline unsigned atomicOr(unsigned* p, unsigned x) {
  return __atomic_fetch_or(p, x, __ATOMIC_RELAXED);
}
inline unsigned atomicXor(unsigned* p, unsigned x) {
  return __atomic_fetch_xor(p, x, __ATOMIC_RELAXED);
}
inline unsigned long long atomicMin(unsigned long long* p, unsigned long long x) {
  unsigned long long old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (x < old &&
         !__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

// ---- numbers -----------------------------------------------------------------------------------

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }

// ---- the runtime -------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum cudaMemoryType {
  cudaMemoryTypeUnregistered,
  cudaMemoryTypeHost,
  cudaMemoryTypeDevice,
  cudaMemoryTypeManaged,
};
struct CUstream_st;
using cudaStream_t = CUstream_st*;

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  void* attrs;
  unsigned numAttrs;
};
struct cudaDeviceProp {
  char name[256];
  struct {
    char bytes[16];
  } uuid;
  std::size_t totalGlobalMem;
  int major, minor;
};

inline const char* cudaGetErrorString(cudaError_t status) {
  if (status == cudaErrorLaunchFailure) return emulation::state().error.c_str();
  return status == cudaSuccess ? "no error" : "an error of the emulated runtime";
}

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... args) {
  const auto call = [kernel, arguments = std::tuple<P...>(std::forward<A>(args)...)] {
    std::apply(kernel, arguments);
  };
  using Call = decltype(call);
  auto* body = +[](const void* pointer) { (*static_cast<const Call*>(pointer))(); };
  emulation::state().error = emulation::run(config->gridDim, config->blockDim, body, &call);
  return emulation::state().error.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  const char* set = std::getenv("EMULATED_MULTIPROCESSORS");
  *value = set == nullptr ? 2 : std::atoi(set);
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated");
  return cudaSuccess;
}
constexpr unsigned cudaStreamNonBlocking = 1;
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

constexpr unsigned cudaHostAllocPortable = 1;
inline cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  *pointer = std::malloc(bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}

namespace emulation {

constexpr std::size_t kPage = 4096, kAlignment = 16;

// Allocations by their end, which is that of a page.
struct Pages {
  char* start;
  std::size_t bytes;
};
inline std::map<const char*, Pages>& allocations() {
  static std::map<const char*, Pages> allocations;
  return allocations;
}

}  // namespace emulation

inline cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  using namespace emulation;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t all = (rounded + kPage - 1) / kPage * kPage + kPage;
  void* start = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return cudaErrorMemoryAllocation;
  char* end = static_cast<char*>(start) + all - kPage;
  mprotect(end, kPage, PROT_NONE);
  *pointer = end - rounded;
  std::memset(*pointer, 0xa5, rounded);  // what memory holds at first is anything
  allocations()[end] = {static_cast<char*>(start), all};
  return cudaSuccess;
}

inline cudaError_t cudaFree(void* pointer) {
  auto& all = emulation::allocations();
  if (pointer == nullptr) return cudaSuccess;
  const auto found = all.lower_bound(static_cast<char*>(pointer));
  if (found == all.end() || found->second.start > pointer) return cudaErrorInvalidValue;
  munmap(found->second.start, found->second.bytes);
  all.erase(found);
  return cudaSuccess;
}

inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                            const void* pointer) {
  auto& all = emulation::allocations();
  const auto found = all.lower_bound(static_cast<const char*>(pointer));
  const bool ours = found != all.end() && found->second.start <= pointer;
  *attributes = {ours ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0};
  return cudaSuccess;
}

template <class T>
cudaError_t cudaMalloc(T** pointer, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
