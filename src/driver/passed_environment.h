// Chooses which environment variables the workers on other hosts get. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Whether a variable concerns the program or its libraries, and not this host, the user or the
// user's session. Such variables are passed on without `-x`.
bool is_passed_on(std::string_view name);

// Returns those of the "NAME=value" lines whose names are passed on.
std::vector<std::string> passed_environment(const std::vector<std::string>& lines);

}  // namespace farandole
