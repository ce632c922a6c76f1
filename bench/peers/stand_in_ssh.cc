// Replaces ssh and the launcher on a host, so that bench/hosts/driver_cost.py measures the driver
// alone. The driver starts this program as `ssh … -- hostN COMMAND`. The program sends the
// greeting, reads its order, reports the order's size to the benchmark, and waits until the
// benchmark ends the connection. For node 0, the program also writes the lines that the launcher
// would write.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr std::uint32_t kSecretBytes = 32;

void write_all(int file, const std::string& text) {
  if (::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::exit(3);
}

std::uint32_t read_exactly(std::uint32_t count) {
  std::string buffer(count, '\0');
  std::uint32_t done = 0;
  while (done < count) {
    const ssize_t got = ::read(STDIN_FILENO, buffer.data() + done, count - done);
    if (got <= 0) std::exit(4);
    done += static_cast<std::uint32_t>(got);
  }
  std::uint32_t first = 0;
  std::memcpy(&first, buffer.data(), sizeof(first));
  return first;
}

int connect_to(const char* path) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) std::exit(5);
  return socket;
}

}  // namespace

int main(int count, char** words) {
  bool is_first = false;
  for (int i = 1; i < count; ++i) is_first = is_first || std::strcmp(words[i], "host0") == 0;
  const std::string greeting = std::string("\n") + std::getenv("STAND_IN_GREETING") + "\n";
  write_all(STDOUT_FILENO, greeting);
  write_all(STDERR_FILENO, greeting);
  const std::uint32_t bytes = read_exactly(sizeof(bytes));
  read_exactly(bytes + kSecretBytes);
  if (is_first) write_all(STDOUT_FILENO, "listens 10.0.0.1:4711\n");
  const int benchmark = connect_to(std::getenv("STAND_IN_SOCKET"));
  write_all(benchmark, std::to_string(bytes + sizeof(bytes) + kSecretBytes) + "\n");
  char byte = 0;
  if (is_first && ::read(benchmark, &byte, 1) == 1) write_all(STDOUT_FILENO, "begins\n");
  while (::read(benchmark, &byte, 1) > 0) {
  }
}
