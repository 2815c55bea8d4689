// The contract is in huge_pages.hpp.
#include "huge_pages.hpp"

#ifdef __linux__

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace paropt {
namespace {

constexpr std::uintptr_t kHuge = 2 * 1024 * 1024;
constexpr std::uintptr_t kNowhere = ~std::uintptr_t{0};
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1, whatever the setting for shared memory is
#endif

std::uintptr_t page_bytes() { return static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)); }

std::uintptr_t up(std::uintptr_t address, std::uintptr_t unit) {
  return (address + unit - 1) / unit * unit;
}

// The whole pages around some memory.
struct Pages {
  std::uintptr_t begin;
  std::size_t bytes;

  Pages(const char* memory, std::size_t size) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    begin = address / page_bytes() * page_bytes();
    bytes = up(address + size, page_bytes()) - begin;
  }
};

// Where in its file the memory at an address begins.
std::uintptr_t place_in_file(std::uintptr_t address) {
  std::ifstream maps("/proc/self/maps");  // begin-end rwxp offset ...
  std::string range, modes, offset, rest;
  while (maps >> range >> modes >> offset && std::getline(maps, rest)) {
    const std::size_t dash = range.find('-');
    const std::uintptr_t begin = std::stoull(range.substr(0, dash), nullptr, 16);
    const std::uintptr_t end = std::stoull(range.substr(dash + 1), nullptr, 16);
    if (begin <= address && address < end) {
      return std::stoull(offset, nullptr, 16) + (address - begin);
    }
  }
  return kNowhere;
}

}  // namespace

char* huge_view(char* memory, std::size_t bytes) {
  const Pages pages(memory, bytes);
  const std::uintptr_t place = place_in_file(pages.begin);
  if (place == kNowhere) return nullptr;
  const std::size_t room = pages.bytes + 2 * kHuge;
  void* const reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t target = up(begin, kHuge) + place % kHuge;
  // Of shared memory, an old size of 0 asks for one more mapping of the same pages.
  void* const view = mremap(reinterpret_cast<void*>(pages.begin), 0, pages.bytes,
                            MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(target));
  if (view == MAP_FAILED) {
    munmap(reserved, room);
    return nullptr;
  }
  if (target > begin) munmap(reserved, target - begin);
  const std::uintptr_t end = target + pages.bytes;
  if (begin + room > end) munmap(reinterpret_cast<void*>(end), begin + room - end);
  return static_cast<char*>(view) + (reinterpret_cast<std::uintptr_t>(memory) - pages.begin);
}

void drop_view(char* view, std::size_t bytes) {
  const Pages pages(view, bytes);
  munmap(reinterpret_cast<void*>(pages.begin), pages.bytes);
}

void make_huge(char* view, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(view);
  const std::uintptr_t begin = up(address, kHuge), end = (address + bytes) / kHuge * kHuge;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLLAPSE);
}

}  // namespace paropt

#else

namespace paropt {

char* huge_view(char*, std::size_t) { return nullptr; }
void drop_view(char*, std::size_t) {}
void make_huge(char*, std::size_t) {}

}  // namespace paropt

#endif
