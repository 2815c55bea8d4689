// LIBSVM text: a sample a line, `label index:value index:value ...`, indices from 1 and ascending.
// `#` starts a comment; empty lines count for nothing. A number is [+-] digits [. digits] [e [+-]
// digits], finite; it is rounded to double and, where it is a value, from there to float.
//
// The text may be hostile: nothing outside it is read, nothing outside the arrays written. Both
// functions are pure and safe to call from several threads; all arrays belong to the caller.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paropt {

struct LibsvmCounts {
  std::size_t lines;    // at least as many as samples
  std::size_t entries;  // at least as many as there are
};

// How much room `parse_libsvm` needs at most: line ends and colons, counted at the speed of memory.
LibsvmCounts count_libsvm(const char* text, std::size_t size);

// The numbers are part of the interface: kernels/libsvm.py has a text for each.
enum class LibsvmFault : int { none = 0, label = 1, index = 2, order = 3, value = 4, range = 5 };

struct LibsvmResult {
  std::size_t rows;
  std::size_t entries;
  std::size_t offset;  // of what is wrong
  LibsvmFault fault;
};

// Parse whole lines; the last may lack its end. `labels` and `ends` have room for counts.lines,
// `columns` and `values` for counts.entries. Row i has the entries up to ends[i], counted from
// `base`; columns count from 0. After a fault the arrays hold what came before it.
LibsvmResult parse_libsvm(const char* text, std::size_t size, std::int64_t base, double* labels,
                          std::int64_t* ends, std::int32_t* columns, float* values);

}  // namespace paropt
