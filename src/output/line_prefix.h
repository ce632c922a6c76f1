// LinePrefix: the text before every line of a worker, from a template such as "[{rank} {time}] ".
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/status.h"

namespace farandole {

// Which worker wrote a line, where and when.
struct LineOrigin {
  int rank = 0;
  int local_rank = 0;
  std::string_view host;
  pid_t pid = 0;
  std::string_view stream;  // "stdout" or "stderr"
  std::chrono::system_clock::time_point time;
};

// Immutable, so any thread may use it.
class LinePrefix {
 public:
  // The default template: "[{rank}] ".
  LinePrefix();
  // In the template, "{{" and "}}" stand for braces. The template may be empty. Errors: kFixCall.
  static Result<LinePrefix> parse(std::string_view pattern);

  // The names of all fields, for help texts: "{rank}, {local_rank}, …".
  static std::string field_names();

  std::string text(const LineOrigin& origin) const;
  // The width of text() on a terminal.
  int columns(const LineOrigin& origin) const;

 private:
  // A field or, if `field` is kNoField, a fixed text.
  struct FieldOrText {
    std::string literal;
    std::size_t field;
  };
  std::vector<FieldOrText> contents_;
};

}  // namespace farandole
