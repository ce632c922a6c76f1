// Which environment variables the workers on other hosts get.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Whether a variable is passed on. Pure. Variables that describe this host, the user's session on
// it, or a job of a scheduler are not passed on. All others are, so that ranks on all hosts read
// the same values.
bool is_passed_on(std::string_view name);

// Returns the "NAME=value" lines of the variables that are passed on. Pure.
std::vector<std::string> passed_environment(const std::vector<std::string>& lines);

// Sets these variables for this process, which must be single-threaded. Ignores lines without "=".
void set_environment(const std::vector<std::string>& lines);

}  // namespace farandole
