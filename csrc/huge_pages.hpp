// Huge pages under memory that processes share: a core then looks up 512 times fewer addresses,
// which is felt where all of a long vector passes by.
//
// Linux maps a huge page only where address and place in the file agree, which the mapping of an
// MPI library need not do; so this rank looks at the memory through a second one. Where the kernel
// refuses, or is another, everything stays as it was.
#pragma once

#include <cstddef>

namespace paropt {

// A second mapping of shared memory in which huge pages fit, or null. It lasts until drop_view.
char* huge_view(char* memory, std::size_t bytes);

void drop_view(char* view, std::size_t bytes);

// Gather the pages under a view into huge ones, for all processes, as far as possible. They hold
// something: pages that nobody has touched yet are not there.
void make_huge(char* view, std::size_t bytes);

}  // namespace paropt
