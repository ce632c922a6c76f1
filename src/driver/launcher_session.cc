#include "driver/launcher_session.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "network/tcp/job_secret.h"
#include "nodes/secret_file.h"
#include "remote/passed_environment.h"
#include "remote/remote_process.h"

namespace farandole {
namespace {

constexpr auto kSecretTimeout = std::chrono::seconds(60);

Status driver_gone_error() { return Status::stop(""); }

Status read_all(std::span<std::byte> buffer) {
  while (!buffer.empty()) {
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return driver_gone_error();
    buffer = buffer.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Result<LauncherOrder> read_order() {
  std::uint32_t byte_count = 0;
  FARANDOLE_TRY(read_all(std::as_writable_bytes(std::span(&byte_count, 1))));
  if (byte_count > kOrderBytesMax)
    return Status::fix_call("`farandole agent` is started by `farandole run -H …`, not by users");
  Bytes content(byte_count);
  FARANDOLE_TRY(read_all(content));
  auto order = decode_launcher_order(content);
  if (!order) return Status::fix_call("the driver has sent bytes that are not an order");
  return *std::move(order);
}

}  // namespace

Result<LauncherSession> LauncherSession::begin(std::string_view version) {
  if (!write_greeting(format_text("{}{}", kAgentGreeting, version))) return driver_gone_error();
  const auto secret =
      JobSecret::read_descriptor(STDIN_FILENO, std::chrono::steady_clock::now() + kSecretTimeout);
  if (secret.status().code() == StatusCode::kFixCall) return driver_gone_error();
  if (!secret.ok()) return secret.status();
  FARANDOLE_TRY_ASSIGN(LauncherOrder order, read_order());
  FARANDOLE_TRY_ASSIGN(const Descriptor shared_secret, share_secret(*secret));
  FARANDOLE_TRY_ASSIGN(Descriptor readable_secret, secret_for_worker(shared_secret));
  return LauncherSession(std::move(order), std::move(readable_secret));
}

Status LauncherSession::apply_order() const {
  if (::chdir(order_.folder.c_str()) != 0)
    return Status::fix_call(format_text(
        "the working directory {} cannot be used on this host: {}; start the job in a folder that "
        "all hosts have",
        order_.folder, std::strerror(errno)));
  ::setenv("PWD", order_.folder.c_str(), 1);
  set_environment(order_.environment);
  return {};
}

Result<NodeOptions> LauncherSession::node_options() const {
  NodeOptions options;
  options.endpoint.host = order_.first_host;
  options.nodes = static_cast<int>(order_.nodes);
  options.node = static_cast<int>(order_.node);
  options.host = order_.host;
  for (const std::string& text : order_.addresses) {
    FARANDOLE_TRY_ASSIGN(const SocketAddress address, SocketAddress::parse(text));
    options.addresses.push_back(address);
  }
  options.replaces = order_.replaces;
  return options;
}

}  // namespace farandole
