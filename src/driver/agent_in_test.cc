// In tests of the driver, this program replaces `farandole agent`. It receives its order in the
// same way. But it starts no launcher and no workers: it runs the program of the order once.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/process_end.h"
#include "driver/launcher_session.h"
#include "driver/relayed_launcher.h"
#include "launcher/driver_lines.h"

namespace farandole {
namespace {

void write_text(int descriptor, std::string_view text) {
  if (::write(descriptor, text.data(), text.size()) < 0) ::_exit(9);
}

// Starts the program and returns its pid. If the caller has channels, the program's descriptor 5 is
// the worker's end of the first channel.
pid_t start_program(const LauncherOrder& order, const CallerDescriptors& caller) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setenv("NODE", std::to_string(order.node).c_str(), 1);
  ::setenv("HOST_NAME", order.host.c_str(), 1);
  if (!caller.channels.empty()) ::dup2(caller.channels.front(), 5);
  if (!caller.streams.empty()) ::dup2(caller.streams.front(), STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : order.program)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  ::_exit(127);
}

// Passes on the signals of the driver until the program ends. Kills the program if the driver is
// gone.
ProcessEnd wait_for_end(pid_t program) {
  const Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, program, 0)));
  for (;;) {
    std::array<pollfd, 2> entries{{{STDIN_FILENO, POLLIN, 0}, {pidfd.get(), POLLIN, 0}}};
    ::poll(entries.data(), entries.size(), -1);
    if (const auto end = reap(program)) return *end;
    char byte = 0;
    if (entries[0].revents != 0)
      ::kill(program, ::read(STDIN_FILENO, &byte, 1) == 1 ? byte : SIGKILL);
  }
}

// Waits like a launcher that waits for the other launchers: until a signal arrives or the driver is
// gone.
int wait_for_others() {
  char byte = 0;
  return ::read(STDIN_FILENO, &byte, 1) == 1 ? 128 + byte : 1;
}

int launch(const LauncherSession& session, const CallerDescriptors& caller) {
  const LauncherOrder& order = session.order();
  const auto options = session.node_options();
  if (!options.ok() || options->addresses.empty() != (order.node == 0 && !order.replaces)) return 8;
  const bool is_node_0 = order.node == 0;
  if (is_node_0) write_text(STDOUT_FILENO, "listens 127.0.0.1:4000 nonsense [::1]:4000\n");
  if (const char* code = std::getenv("AGENT_FAILS_WITH")) return std::atoi(code);
  if (std::getenv("AGENT_WAITS_FOR_OTHERS") != nullptr) return wait_for_others();
  if (is_node_0) write_text(STDOUT_FILENO, "begins\n");
  const ProcessEnd end = wait_for_end(start_program(order, caller));
  if (caller.report >= 0)
    write_text(caller.report, "ended " + std::to_string(order.node) + " code " +
                                  std::to_string(end.exit_code()) + "\ncause 0\n");
  if (!caller.copies.empty()) write_text(caller.copies.front(), "copy from " + order.host + "\n");
  if (end.exit_code() == 255) write_text(STDOUT_FILENO, std::string(kExitCode255Line) + "\n");
  return end.exit_code();
}

int run() {
  const auto session = LauncherSession::begin("1.2.3");
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().message().c_str());
    return session.status().message().empty() ? 1 : 2;
  }
  if (const Status applied = session->apply_order(); !applied.ok()) {
    std::fprintf(stderr, "%s\n", applied.message().c_str());
    return 2;
  }
  const auto& relayed = session->order().relayed;
  if (!relayed) return launch(*session, {});
  return run_relayed_launcher(
      *relayed, 1, [&](const CallerDescriptors& caller) { return launch(*session, caller); });
}

}  // namespace
}  // namespace farandole

int main() { return farandole::run(); }
