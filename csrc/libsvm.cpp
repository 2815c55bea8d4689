#include "libsvm.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>

namespace paropt {
namespace {

constexpr std::int64_t kMaxIndex = std::numeric_limits<std::int32_t>::max();
constexpr int kExactDigits = 15;  // any so long an integer is a double
constexpr double kPowers[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r' && c != '\n'); }

struct Cursor {
  const char* at;
  const char* end;

  bool done() const { return at == end; }
  bool ends_line() const { return done() || *at == '\n' || *at == '#'; }
  bool ends_word() const { return ends_line() || is_blank(*at); }
  void skip_blanks() {
    while (!done() && is_blank(*at)) ++at;
  }
  void skip_line() {
    const void* found = done() ? nullptr : std::memchr(at, '\n', static_cast<size_t>(end - at));
    at = found == nullptr ? end : static_cast<const char*>(found) + 1;
  }
};

// Digits as an integer: how many there are, however large.
int digits(Cursor& c, std::int64_t& value) {
  const char* first = c.at;
  for (; !c.done() && is_digit(*c.at); ++c.at) {
    if (c.at - first < kExactDigits) value = 10 * value + (*c.at - '0');
  }
  return static_cast<int>(std::min<std::ptrdiff_t>(c.at - first, kExactDigits + 1));
}

#if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
const char* to_double(const char* first, const char* last, double& out, bool& range) {
  const auto result = std::from_chars(first, last, out, std::chars_format::general);
  range = result.ec == std::errc::result_out_of_range;
  return result.ec == std::errc::invalid_argument ? first : result.ptr;
}
#else  // a standard library before 2021
const char* to_double(const char* first, const char* last, double& out, bool& range) {
  const char* stop = std::find_if(
      first, last, [](char c) { return !is_digit(c) && std::strchr("+-.eE", c) == nullptr; });
  const std::string copy(first, stop);
  char* parsed = nullptr;
  out = std::strtod(copy.c_str(), &parsed);
  const bool zero =
      copy.substr(0, copy.find_first_of("eE")).find_first_of("123456789") == std::string::npos;
  range = std::isinf(out) || (out == 0 && !zero);
  return first + (parsed - copy.c_str());
}
#endif

// A number that ends its word. Short ones are exact as an integer over a power of ten, and so is
// their correctly rounded quotient; the library takes the others.
bool number(Cursor& c, double& out, bool& range) {
  const char* start = c.at;
  const bool minus = !c.done() && *c.at == '-';
  if (!c.done() && (*c.at == '-' || *c.at == '+')) ++c.at;
  const char* unsigned_start = c.at;
  std::int64_t mantissa = 0;
  int count = digits(c, mantissa), fraction = 0;
  if (count > 0 && !c.done() && *c.at == '.') {
    ++c.at;
    const char* point = c.at;
    while (!c.done() && is_digit(*c.at) && count <= kExactDigits) {
      mantissa = 10 * mantissa + (*c.at++ - '0');
      ++count;
    }
    fraction = static_cast<int>(c.at - point);
  }
  if (count > 0 && count <= kExactDigits && c.ends_word()) {
    out = static_cast<double>(mantissa) / kPowers[fraction];
    if (minus) out = -out;
    return true;
  }
  c.at = unsigned_start;
  if (c.done() || !(is_digit(*c.at) || *c.at == '.')) {
    c.at = start;
    return false;
  }
  const char* stop = to_double(c.at, c.end, out, range);
  const bool whole = stop != c.at;
  c.at = stop;
  const bool fine = whole && c.ends_word();
  range = range && fine;
  if (!fine || range) c.at = start;
  if (minus) out = -out;
  return fine && !range;
}

LibsvmFault entry(Cursor& c, std::int64_t& previous, std::int32_t* column, float* value) {
  const char* start = c.at;
  std::int64_t index = 0;
  const int count = digits(c, index);
  if (count == 0 || c.done() || *c.at != ':' || count > kExactDigits || index < 1 ||
      index > kMaxIndex) {
    c.at = start;
    return LibsvmFault::index;
  }
  if (index <= previous) {
    c.at = start;
    return LibsvmFault::order;
  }
  ++c.at;
  double wide = 0;
  bool range = false;
  start = c.at;
  if (!number(c, wide, range)) return range ? LibsvmFault::range : LibsvmFault::value;
  *value = static_cast<float>(wide);
  if (std::isinf(*value)) {
    c.at = start;
    return LibsvmFault::range;
  }
  *column = static_cast<std::int32_t>(index - 1);
  previous = index;
  return LibsvmFault::none;
}

}  // namespace

LibsvmCounts count_libsvm(const char* text, std::size_t size) {
  LibsvmCounts counts{size > 0 && text[size - 1] != '\n', 0};
  constexpr std::size_t kBlock = std::size_t{1}
                                 << 16;  // few enough for narrow sums, which are fast
  for (std::size_t first = 0; first < size; first += kBlock) {
    const std::size_t last = std::min(size, first + kBlock);
    std::uint32_t lines = 0, entries = 0;
    for (std::size_t i = first; i < last; ++i) {
      lines += text[i] == '\n';
      entries += text[i] == ':';
    }
    counts.lines += lines;
    counts.entries += entries;
  }
  return counts;
}

LibsvmResult parse_libsvm(const char* text, std::size_t size, std::int64_t base, double* labels,
                          std::int64_t* ends, std::int32_t* columns, float* values) {
  Cursor c{text, text + size};
  std::size_t rows = 0, entries = 0;
  const auto stop = [&](LibsvmFault fault) {
    return LibsvmResult{rows, entries, static_cast<std::size_t>(c.at - text), fault};
  };
  while (!c.done()) {
    c.skip_blanks();
    if (!c.ends_line()) {
      bool range = false;
      if (!number(c, labels[rows], range)) {
        return stop(range ? LibsvmFault::range : LibsvmFault::label);
      }
      std::int64_t previous = 0;
      for (c.skip_blanks(); !c.ends_line(); c.skip_blanks()) {
        const LibsvmFault fault = entry(c, previous, columns + entries, values + entries);
        if (fault != LibsvmFault::none) return stop(fault);
        ++entries;
      }
      ends[rows++] = base + static_cast<std::int64_t>(entries);
    }
    c.skip_line();
  }
  return stop(LibsvmFault::none);
}

}  // namespace paropt
