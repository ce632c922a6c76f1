// Stack text: picks the useful lines from py-spy's output about a Python program.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// The frames of the main thread, innermost first. `dump` is the output of `py-spy dump` for process
// `pid`. If there are only other threads, returns the beginning of `dump`. If there is no thread at
// all, `dump` is an error text, and the result is empty. At most 12 lines.
std::vector<std::string> main_thread_in(std::string_view dump, pid_t pid);

// The last line that is not blank.
std::string last_line_of(std::string_view text);

}  // namespace farandole
