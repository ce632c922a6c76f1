// Stack text: selects the useful lines of py-spy's output about a Python program.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Returns the frames of the main thread, innermost first. Successive frames of Farandole are
// replaced by one line with their number. If there are more than 12 lines, the frames in the middle
// are replaced in the same way. The innermost frames show what the thread does, and the outermost
// frames show where it is in the program.
//
// `dump` is the output of `py-spy dump` for process `pid`. If `dump` has only other threads,
// returns its beginning. If `dump` has no thread at all, `dump` is an error text, and the result is
// empty.
std::vector<std::string> main_thread_frames(std::string_view dump, pid_t pid);

// Returns the last line that is not blank.
std::string last_line_of(std::string_view text);

}  // namespace farandole
