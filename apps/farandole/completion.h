// `farandole completion SHELL`: a script with which a shell completes our commands and options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace farandole {

// Returns the script for bash, zsh or fish, from the commands and options that the parser knows.
// The result is empty for other shells.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace farandole
