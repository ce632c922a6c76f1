#include "caller_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <limits>
#include <sstream>
#include <vector>

#include "base/format.h"
#include "base/try.h"
#include "base/whole_number.h"

namespace farandole {
namespace {

Result<int> parse_open_descriptor(const char* flag, const std::string& text) {
  FARANDOLE_TRY_ASSIGN(const int number, parse_whole_number(flag, text, STDERR_FILENO + 1,
                                                            std::numeric_limits<int>::max()));
  // The descriptor is close-on-exec from now on. The launcher passes it only to the worker that
  // needs it, and never to ssh.
  if (::fcntl(number, F_SETFD, FD_CLOEXEC) == 0) return number;
  return Status::fix_call(
      format_text("{} is \"{}\"; {} is not an open descriptor", flag, text, number));
}

// Returns −1 for a flag that was not given.
Result<int> parse_optional_descriptor(const char* flag, const std::string& text) {
  return text.empty() ? Result<int>(-1) : parse_open_descriptor(flag, text);
}

// Returns an empty list for a flag that was not given.
Result<std::vector<int>> parse_descriptors(const char* flag, const std::string& text,
                                           std::size_t count_needed) {
  std::vector<int> numbers;
  if (text.empty()) return numbers;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    FARANDOLE_TRY_ASSIGN(const int number, parse_open_descriptor(flag, word));
    numbers.push_back(number);
  }
  if (numbers.size() == count_needed) return numbers;
  return Status::fix_call(format_text("{} is \"{}\"; {} descriptors are needed, not {}", flag, text,
                                      count_needed, numbers.size()));
}

}  // namespace

CallerFlags::CallerFlags(CLI::App& command) {
  const auto add = [&](const char* flag, std::string& value, const char* help) {
    command.add_option(flag, value, help)->type_name("FD")->group(kHelpGroup);
  };
  add("--caller", caller_,
      "A pidfd of the program: when the program ends, the job gets SIGHUP, or SIGTERM with -H");
  add("--report", report_,
      "A pipe for lines such as `started RANK PID`, `ended RANK code N`, `ended RANK signal N`, "
      "`cause RANK PID`");
  add("--door", door_,
      "A socket of the type SOCK_SEQPACKET. For each rank, the program receives a message with the "
      "number of the rank and a stream socket. The worker finds the other end of this socket in "
      "FARANDOLE_CHANNEL_DESCRIPTOR");
  add("--streams", streams_,
      "Two descriptors for each rank, such as 3,4,5,6, for its standard output and error. The "
      "launcher then does not show this output");
  command
      .add_flag("--list-hosts", only_lists_hosts_,
                "With -H or --hostfile: prints a line such as `hen 4` for each host that gets "
                "workers, in the order of the ranks, and starts no job")
      ->group(kHelpGroup);
}

Result<CallerDescriptors> CallerFlags::descriptors(int workers) const {
  const auto count = static_cast<std::size_t>(workers);
  CallerDescriptors caller;
  FARANDOLE_TRY_ASSIGN(caller.pidfd, parse_optional_descriptor("--caller", caller_));
  FARANDOLE_TRY_ASSIGN(caller.report, parse_optional_descriptor("--report", report_));
  FARANDOLE_TRY_ASSIGN(caller.door, parse_optional_descriptor("--door", door_));
  FARANDOLE_TRY_ASSIGN(caller.streams, parse_descriptors("--streams", streams_, 2 * count));
  return caller;
}

}  // namespace farandole
