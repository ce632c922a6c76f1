// Chooses which environment variables the workers on other hosts get. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Whether a variable is about the program or its libraries, and not about this host, its user or
// his session. Variables with such names are passed on without `-x`.
bool is_passed_on(std::string_view name);

// Returns those of the "NAME=value" lines whose names are passed on.
std::vector<std::string> passed_environment(const std::vector<std::string>& lines);

}  // namespace farandole
