// Feeds bytes of an attacker to a TLS session. The first byte of the input selects the case:
// - 0: a stranger sends the other bytes to a listening end.
// - 1: a stranger sends the other bytes to a dialing end.
// - 2: the other bytes describe changes to the stream between two honest ends.
// No stranger may be accepted, and no changed byte may be received.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "base/check.h"
#include "network/simulated_connection_in_test.h"
#include "network/tcp/tls_session.h"

namespace {

using namespace farandole;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kPayloadBytes = 1000;
constexpr int kStepsWithoutProgress = 20;

const Link kLink{.job = 7,
                 .epoch = 3,
                 .dialer = {Role::kWorker, 1},
                 .listener = {Role::kWorker, 0},
                 .seals_data = true};
const AcceptedLinks kAcceptance{
    .job = 7, .epoch = 3, .self = {Role::kWorker, 0}, .seals_data = true};

// Uses the secret of the tests, so that recorded streams in the corpus stay valid.
std::unique_ptr<TlsContext> make_context() {
  std::array<int, 2> ends{-1, -1};
  const std::string secret(kSecretBytes, 's');
  CHECK(::pipe(ends.data()) == 0, "a pipe can be made");
  CHECK(::write(ends[1], secret.data(), secret.size()) == kSecretBytes, "a pipe takes 32 bytes");
  auto job_secret =
      JobSecret::read_descriptor(ends[0], std::chrono::steady_clock::time_point::max());
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK(job_secret.ok(), "the secret can be kept");
  return *TlsContext::make(*std::move(job_secret));
}

std::unique_ptr<TlsSession> session_at(const TlsContext& context,
                                       const std::shared_ptr<SimulatedWire>& wire, bool is_dialer) {
  auto connection = std::make_unique<SimulatedConnection>(wire, is_dialer ? 0 : 1);
  return is_dialer ? TlsSession::dial(context, std::move(connection), kLink)
                   : TlsSession::listen(context, std::move(connection), kAcceptance);
}

void feed_stranger_stream(const TlsContext& context, std::span<const std::byte> stream,
                          bool is_dialer) {
  const auto wire = std::make_shared<SimulatedWire>(stream.size());
  const auto session = session_at(context, wire, is_dialer);
  wire->directions[is_dialer ? 1 : 0].sent.assign(stream.begin(), stream.end());
  for (int i = 0; i < kStepsWithoutProgress + static_cast<int>(stream.size()); ++i) {
    const auto progress = session->try_handshake();
    if (!progress.ok()) return;
    CHECK(*progress != TlsSession::Progress::kDone, "a stranger has no key");
  }
}

// Each group of four bytes is a change: direction, offset (2 bytes), the bits to flip. Ignores
// changes of bytes that were in the stream at the previous call: the other end may have received
// them.
void change_bytes(SimulatedWire& wire, std::span<const std::byte> changes,
                  std::array<std::size_t, 2>& new_bytes_begin) {
  for (std::size_t i = 0; i + 4 <= changes.size(); i += 4) {
    const auto direction = static_cast<std::size_t>(changes[i] & std::byte{1});
    const std::size_t offset =
        (static_cast<std::size_t>(changes[i + 1]) << 8U) | static_cast<std::size_t>(changes[i + 2]);
    Bytes& bytes = wire.directions[direction].sent;
    if (offset < new_bytes_begin[direction] || offset >= bytes.size()) continue;
    bytes[offset] ^= changes[i + 3];
  }
  for (const std::size_t i : {0U, 1U}) new_bytes_begin[i] = wire.directions[i].sent.size();
}

void run_session_with_changes(const TlsContext& context, std::span<const std::byte> changes) {
  const auto wire = std::make_shared<SimulatedWire>(changes.size());
  const auto dialer = session_at(context, wire, true);
  const auto listener = session_at(context, wire, false);
  std::array<std::size_t, 2> new_bytes_begin{};
  bool dialer_done = false;
  bool listener_done = false;
  for (int i = 0; i < 200 && !(dialer_done && listener_done); ++i) {
    const auto dialer_progress = dialer->try_handshake();
    change_bytes(*wire, changes, new_bytes_begin);
    const auto listener_progress = listener->try_handshake();
    change_bytes(*wire, changes, new_bytes_begin);
    if (!dialer_progress.ok() || !listener_progress.ok()) return;
    dialer_done = *dialer_progress == TlsSession::Progress::kDone;
    listener_done = *listener_progress == TlsSession::Progress::kDone;
  }
  if (!dialer_done || !listener_done) return;
  CHECK(listener->link() == kLink, "nobody can change the link");
  const Bytes sent(kPayloadBytes, std::byte{7});
  if (!dialer->try_send({}, sent).ok()) return;
  Bytes received(kPayloadBytes);
  for (int i = 0; i < 50; ++i) {
    if (!dialer->try_send({}, {}).ok()) return;
    change_bytes(*wire, changes, new_bytes_begin);
    const auto count = listener->try_receive(received);
    if (!count.ok()) return;
    for (std::size_t k = 0; k < *count; ++k)
      CHECK(received[k] == std::byte{7}, "no changed byte is received");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<TlsContext> context = make_context();
  if (size == 0) return 0;
  const auto payload = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] % 3 == 2)
    run_session_with_changes(*context, payload);
  else
    feed_stranger_stream(*context, payload, data[0] % 3 == 1);
  return 0;
}
