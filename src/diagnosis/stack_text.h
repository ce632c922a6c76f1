// Stack text: what py-spy writes about a Python program, as far as people want to read it.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// The frames of the main thread, innermost first, in what `py-spy dump` has written about process
// `pid`; all of it if there are only other threads, nothing if there is none: then it is an error
// text. At most 12 lines.
std::vector<std::string> main_thread_in(std::string_view dump, pid_t pid);

// The last line with something in it.
std::string last_line_of(std::string_view text);

}  // namespace farandole
