// One piece of memory per rank of a node that all ranks of the node see: an MPI-3 shared window.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "mpi_common.hpp"

namespace paropt {

class SharedSegment {
 public:
  // Collective over `node`, whose ranks share memory: `bytes` of it for every rank, zeroed if
  // `zeroed`; otherwise no page is touched. Throws on every rank if the MPI library cannot give
  // memory that all ranks see alike. A long one that is zeroed lies on huge pages where possible.
  SharedSegment(MPI_Comm node, std::size_t bytes, bool zeroed);

  // Local, and frees nothing: a rank that ends by an exception must not wait for the others. The
  // memory stays until free() or the end of the process.
  ~SharedSegment() = default;
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Collective: give the memory back. A second call does nothing.
  void free();

  char* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::size_t bytes() const { return bytes_; }

 private:
  void look_through_huge_pages(int rank);

  std::size_t bytes_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<char*> bases_;
  std::vector<char*> views_;  // those of bases_ that are not the MPI library's own
};

}  // namespace paropt
