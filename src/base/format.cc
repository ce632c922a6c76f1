#include "base/format.h"

#include <fmt/format.h>

namespace farandole {

std::string format_values(fmt::string_view format, fmt::format_args values) {
  return fmt::vformat(format, values);
}

}  // namespace farandole
