// LinePrefix: what stands before every line of a worker, made from a template such as
// "[{rank} {time}] ".
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/status.h"

namespace farandole {

// Where and when a line came from.
struct LineOrigin {
  int rank = 0;
  int local_rank = 0;
  std::string_view host;
  pid_t pid = 0;
  std::string_view stream;  // "stdout" or "stderr"
  std::chrono::system_clock::time_point time;
};

// Immutable; any thread.
class LinePrefix {
 public:
  // "[{rank}] ".
  LinePrefix();
  // "{{" and "}}" stand for braces; an empty template makes no prefix. Errors: kFixCall.
  static Result<LinePrefix> parse(std::string_view pattern);

  // "{rank}, {local_rank}, …": all fields, for help texts.
  static std::string field_names();

  std::string text(const LineOrigin& origin) const;
  // How wide text() is on a terminal.
  int columns(const LineOrigin& origin) const;

 private:
  // A text as it is, or, if `field` is one, what a field says.
  struct Part {
    std::string literal;
    std::size_t field;
  };
  std::vector<Part> parts_;
};

}  // namespace farandole
