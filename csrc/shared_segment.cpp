#include "shared_segment.hpp"

#include <cstdint>
#include <cstring>

#include "huge_pages.hpp"

namespace paropt {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugeFrom = 4 * 1024 * 1024;  // bytes

// Pages are mapped whole, so an address is as far from a multiple of 64 in every process.
char* aligned(void* base) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  return static_cast<char*>(base) + (kLine - address % kLine) % kLine;
}

bool is_unified(MPI_Win window) {
  int* model = nullptr;
  int found = 0;
  MPI_CHECK(MPI_Win_get_attr(window, MPI_WIN_MODEL, &model, &found));
  return found != 0 && *model == MPI_WIN_UNIFIED;
}

}  // namespace

SharedSegment::SharedSegment(MPI_Comm node, std::size_t bytes, bool zeroed) : bytes_(bytes) {
  const ErrorsReturn errors_return(node);
  int rank = 0;
  int size = 0;
  MPI_CHECK(MPI_Comm_rank(node, &rank));
  MPI_CHECK(MPI_Comm_size(node, &size));
  // Each rank's memory on pages of its own, so that it lies near the rank that touches it first.
  MPI_Info info = MPI_INFO_NULL;
  MPI_CHECK(MPI_Info_create(&info));
  MPI_Info_set(info, "alloc_shared_noncontig", "true");
  const std::size_t whole = (bytes + 2 * kLine - 1) / kLine * kLine;
  void* own = nullptr;
  const int code =
      MPI_Win_allocate_shared(static_cast<MPI_Aint>(whole), 1, info, node, &own, &window_);
  MPI_Info_free(&info);
  check_mpi(code, "MPI_Win_allocate_shared");
  if (!is_unified(window_)) throw std::runtime_error("the shared window is not of unified memory");
  bases_.resize(static_cast<std::size_t>(size));
  for (int other = 0; other < size; ++other) {
    MPI_Aint length = 0;
    int unit = 0;
    void* base = nullptr;
    MPI_CHECK(MPI_Win_shared_query(window_, other, &length, &unit, &base));
    bases_[static_cast<std::size_t>(other)] = aligned(base);
  }
  if (zeroed) std::memset(base(rank), 0, bytes);
  if (zeroed && bytes >= kHugeFrom) look_through_huge_pages(rank);
  MPI_CHECK(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
  MPI_CHECK(MPI_Barrier(node));
}

void SharedSegment::look_through_huge_pages(int rank) {
  for (char*& base : bases_) {
    char* const view = huge_view(base, bytes_);
    if (view == nullptr) continue;
    views_.push_back(view);
    base = view;
  }
  make_huge(base(rank), bytes_);
}

void SharedSegment::free() {
  if (window_ == MPI_WIN_NULL) return;
  for (char* const view : views_) drop_view(view, bytes_);
  views_.clear();
  MPI_CHECK(MPI_Win_unlock_all(window_));
  MPI_CHECK(MPI_Win_free(&window_));
}

}  // namespace paropt
