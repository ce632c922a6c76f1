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

Result<int> open_descriptor(const char* flag, const std::string& text) {
  FARANDOLE_TRY_ASSIGN(const int number, whole_number(flag, text, STDERR_FILENO + 1,
                                                      std::numeric_limits<int>::max()));
  // Close-on-exec, so that each worker inherits only its own descriptor, and ssh inherits none.
  if (::fcntl(number, F_SETFD, FD_CLOEXEC) == 0) return number;
  return Status::fix_call(
      format_text("{} is \"{}\"; {} is not an open descriptor", flag, text, number));
}

// Returns −1 for a flag that was not given.
Result<int> descriptor_in(const char* flag, const std::string& text) {
  return text.empty() ? Result<int>(-1) : open_descriptor(flag, text);
}

// Returns an empty list for a flag that was not given.
Result<std::vector<int>> descriptors_in(const char* flag, const std::string& text,
                                        std::size_t wanted) {
  std::vector<int> numbers;
  if (text.empty()) return numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    FARANDOLE_TRY_ASSIGN(const int number, open_descriptor(flag, part));
    numbers.push_back(number);
  }
  if (numbers.size() == wanted) return numbers;
  return Status::fix_call(format_text("{} is \"{}\"; {} descriptors are needed, not {}", flag, text,
                                      wanted, numbers.size()));
}

}  // namespace

CallerFlags::CallerFlags(CLI::App& command) {
  const auto add = [&](const char* flag, std::string& value, const char* help) {
    command.add_option(flag, value, help)->type_name("FD")->group(kGroup);
  };
  add("--caller", caller_,
      "A pidfd of the program: when the program ends, the job gets SIGHUP, or SIGTERM with -H");
  add("--report", report_,
      "A pipe for lines such as `started RANK PID`, `ended RANK code N`, `ended RANK signal N`, "
      "`cause RANK PID`");
  add("--door", door_,
      "A socket of the type SOCK_SEQPACKET, over which the program gets a channel for each rank: "
      "the number of the rank, and a stream socket, whose other end the worker finds in "
      "FARANDOLE_CHANNEL_DESCRIPTOR");
  add("--streams", streams_,
      "Two descriptors for each rank, such as 3,4,5,6: its standard output and error, which the "
      "launcher then does not show");
  command
      .add_flag("--list-hosts", only_lists_hosts_,
                "With -H or --hostfile: prints a line such as `hen 4` for each host that gets "
                "workers, in the order of the ranks, and starts nothing")
      ->group(kGroup);
}

Result<CallerDescriptors> CallerFlags::descriptors(int workers) const {
  const auto count = static_cast<std::size_t>(workers);
  CallerDescriptors caller;
  FARANDOLE_TRY_ASSIGN(caller.pidfd, descriptor_in("--caller", caller_));
  FARANDOLE_TRY_ASSIGN(caller.report, descriptor_in("--report", report_));
  FARANDOLE_TRY_ASSIGN(caller.door, descriptor_in("--door", door_));
  FARANDOLE_TRY_ASSIGN(caller.streams, descriptors_in("--streams", streams_, 2 * count));
  return caller;
}

}  // namespace farandole
