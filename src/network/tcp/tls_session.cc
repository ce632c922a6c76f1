#include "network/tcp/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "base/allocation.h"
#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "network/tcp/vector_cipher.h"

namespace farandole {
namespace {

constexpr std::size_t kRecordBytes = 16 * 1024;  // the largest payload of a TLS record
constexpr std::size_t kRecordHeaderBytes = 5;    // RFC 8446, 5.1
// The number of bytes that one system call sends or receives. Pieces of 64 KiB take about 10 % less
// processor time than one call per record (docs/decisions/0050).
constexpr std::size_t kSystemCallBytes = 64 * 1024;
// The number of bytes in clear that one system call sends. Pieces of 64 KiB made transfers eight
// times slower between four hosts whose network is limited to 5 Gb/s by token buckets.
constexpr std::size_t kClearSendBytes = 32 * 1024;
// The number of bytes that one system call receives if data in clear may follow the record. The
// number is small, so that later calls receive most of the data directly into its target memory.
constexpr std::size_t kHeaderReceiveBytes = 1024;
// A handshake has about 400 bytes. The limit bounds the memory that a stranger can make us use.
constexpr std::size_t kHandshakeBytesMax = 4096;
constexpr std::byte kConfirmation{1};

std::string openssl_errors() {
  std::string text;
  while (const unsigned long code = ::ERR_get_error()) {
    const char* reason = ::ERR_reason_error_string(code);
    if (!text.empty()) text += ", ";
    text += reason == nullptr ? std::to_string(code) : std::string(reason);
  }
  return text.empty() ? "no reason given" : text;
}

int length_of(std::size_t bytes) {
  return static_cast<int>(std::min<std::size_t>(bytes, std::numeric_limits<int>::max()));
}

}  // namespace

// OpenSSL calls these functions with pointers to the session. No exception may pass through
// OpenSSL.
struct TlsSession::Callbacks {
  static TlsSession& session_of_wire(BIO* wire) {
    return *static_cast<TlsSession*>(::BIO_get_data(wire));
  }

  static int read(BIO* wire, char* into, int length) noexcept {
    ::BIO_clear_retry_flags(wire);
    const auto target = std::as_writable_bytes(std::span(into, static_cast<std::size_t>(length)));
    const int count = session_of_wire(wire).read_wire(target);
    if (count != 0) return count;
    ::BIO_set_retry_read(wire);
    return -1;
  }

  static int write(BIO* wire, const char* from, int length) noexcept {
    ::BIO_clear_retry_flags(wire);
    const auto source = std::as_bytes(std::span(from, static_cast<std::size_t>(length)));
    return session_of_wire(wire).write_wire(source);
  }

  static long control(BIO* /*wire*/, int command, long /*number*/, void* /*pointer*/) noexcept {
    return command == BIO_CTRL_FLUSH ? 1 : 0;  // no other command is needed
  }

  static int use_session(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity,
                         std::size_t* identity_bytes, SSL_SESSION** session) noexcept {
    auto& self = *static_cast<TlsSession*>(SSL_get_app_data(ssl));
    *identity = reinterpret_cast<const unsigned char*>(self.identity_.data());
    *identity_bytes = self.identity_.size();
    *session = self.session_of(self.link_);
    return *session == nullptr ? 0 : 1;
  }

  // If the identity is that of a stranger, this function returns no session. OpenSSL then ends the
  // handshake, because we have no certificate.
  static int find_session(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
                          SSL_SESSION** session) noexcept {
    auto& self = *static_cast<TlsSession*>(SSL_get_app_data(ssl));
    *session = nullptr;
    const auto link = parse_identity(std::as_bytes(std::span(identity, identity_bytes)));
    if (!link.ok() || !self.accepts(*link)) return 1;
    self.link_ = *link;
    *session = self.session_of(*link);
    return 1;
  }
};

TlsContext::TlsContext(JobSecret secret, SSL_CTX* settings, BIO_METHOD* wire_method)
    : secret_(std::move(secret)), settings_(settings), wire_method_(wire_method) {}

TlsContext::~TlsContext() {
  ::BIO_meth_free(wire_method_);
  ::SSL_CTX_free(settings_);
}

Result<std::unique_ptr<TlsContext>> TlsContext::make(JobSecret secret) {
  using Callbacks = TlsSession::Callbacks;
  SSL_CTX* settings = ::SSL_CTX_new_ex(nullptr, fastest_cipher_properties(), ::TLS_method());
  BIO_METHOD* method = ::BIO_meth_new(BIO_TYPE_SOURCE_SINK, "wire");
  std::unique_ptr<TlsContext> context(new TlsContext(std::move(secret), settings, method));
  const bool is_allocated = settings != nullptr && method != nullptr;
  if (!is_allocated || ::SSL_CTX_set_min_proto_version(settings, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_max_proto_version(settings, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(settings, "TLS_AES_128_GCM_SHA256") != 1 ||
      ::SSL_CTX_set1_groups_list(settings, "X25519") != 1 ||
      ::SSL_CTX_set_num_tickets(settings, 0) != 1)
    return Status::stop("OpenSSL cannot set up TLS 1.3: " + openssl_errors());
  ::BIO_meth_set_read(method, Callbacks::read);
  ::BIO_meth_set_write(method, Callbacks::write);
  ::BIO_meth_set_ctrl(method, Callbacks::control);
  ::SSL_CTX_set_psk_use_session_callback(settings, Callbacks::use_session);
  ::SSL_CTX_set_psk_find_session_callback(settings, Callbacks::find_session);
  ::SSL_CTX_set_session_cache_mode(settings, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_clear_options(settings, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  // Without this option, OpenSSL would treat an unknown identity as a session ticket, and try to
  // read it.
  ::SSL_CTX_set_options(settings, SSL_OP_NO_TICKET);
  ::SSL_CTX_set_mode(settings, SSL_MODE_ENABLE_PARTIAL_WRITE);
  return context;
}

TlsSession::TlsSession(const TlsContext& context, std::unique_ptr<Connection> wire, Side side)
    : context_(context), wire_(std::move(wire)), side_(side) {
  peer_.addresses = wire_->peer().addresses;
  ssl_ = ::SSL_new(context.settings_);
  BIO* bio = ::BIO_new(context.wire_method_);
  if (ssl_ == nullptr || bio == nullptr) throw std::bad_alloc();
  ::BIO_set_data(bio, this);
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(ssl_, bio, bio);  // takes ownership of the BIO
  SSL_set_app_data(ssl_, this);
}

TlsSession::~TlsSession() {
  close();
  ::SSL_free(ssl_);
}

std::unique_ptr<TlsSession> TlsSession::dial(const TlsContext& context,
                                             std::unique_ptr<Connection> wire, const Link& link) {
  std::unique_ptr<TlsSession> session(new TlsSession(context, std::move(wire), Side::kDialing));
  session->link_ = link;
  session->identity_ = identity_of(link);
  session->peer_.party = link.listener;
  session->peer_.epoch = link.epoch;
  session->may_write_ = true;
  // If the peer sends a certificate instead of a proof, OpenSSL rejects it, because no certificate
  // is trusted.
  ::SSL_set_verify(session->ssl_, SSL_VERIFY_PEER, nullptr);
  ::SSL_set_connect_state(session->ssl_);
  return session;
}

std::unique_ptr<TlsSession> TlsSession::listen(const TlsContext& context,
                                               std::unique_ptr<Connection> wire,
                                               const AcceptedLinks& acceptance) {
  std::unique_ptr<TlsSession> session(new TlsSession(context, std::move(wire), Side::kListening));
  session->acceptance_ = acceptance;
  ::SSL_set_accept_state(session->ssl_);
  return session;
}

bool TlsSession::accepts(const Link& link) const {
  return link.job == acceptance_.job && link.epoch == acceptance_.epoch &&
         link.listener == acceptance_.self && link.seals_data == acceptance_.seals_data;
}

// Returns null if memory is short or the secret is gone; the handshake then fails.
SSL_SESSION* TlsSession::session_of(const Link& link) {
  SecretKey key;
  const Status derive_status =
      catch_bad_alloc([] { return "cannot derive a key"; },
                      [&] { return context_.secret_.derive(identity_of(link), key); });
  if (!derive_status.ok()) {
    wire_failure_ = derive_status;
    return nullptr;
  }
  constexpr std::array<unsigned char, 2> kAes128GcmSha256{0x13, 0x01};
  const SSL_CIPHER* cipher = ::SSL_CIPHER_find(ssl_, kAes128GcmSha256.data());
  SSL_SESSION* session = ::SSL_SESSION_new();
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.bytes().data());
  if (session != nullptr && cipher != nullptr &&
      ::SSL_SESSION_set1_master_key(session, bytes, kSecretBytes) == 1 &&
      ::SSL_SESSION_set_cipher(session, cipher) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  ::SSL_SESSION_free(session);
  return nullptr;
}

int TlsSession::read_wire(std::span<std::byte> into) {
  if (arrived_begin_ == arrived_end_ && !receive_for_openssl(into.size())) return -1;
  const auto count = std::min(into.size(), arrived_end_ - arrived_begin_);
  std::copy_n(arrived_bytes_.begin() + static_cast<std::ptrdiff_t>(arrived_begin_), count,
              into.begin());
  arrived_begin_ += count;
  return length_of(count);
}

// During the handshake, receives only the bytes that OpenSSL asks for, and at most
// kHandshakeBytesMax in total.
Status TlsSession::receive_from_wire(std::size_t bytes_wanted) {
  std::size_t limit =
      link_.seals_data ? kSystemCallBytes : std::max(bytes_wanted, kHeaderReceiveBytes);
  if (progress_ != Progress::kDone) {
    limit = std::min(bytes_wanted, kHandshakeBytesMax - handshake_bytes_);
    if (limit == 0)
      return Status::rebuild_group(
          format_text("the other end ({}) sent more than {} bytes before it has proven who it is",
                      peer_.addresses, kHandshakeBytesMax));
  }
  arrived_begin_ = arrived_end_ = 0;
  if (arrived_bytes_.size() < limit) arrived_bytes_.resize(limit);
  FARANDOLE_TRY_ASSIGN(arrived_end_, wire_->try_receive(std::span(arrived_bytes_).first(limit)));
  if (progress_ != Progress::kDone) handshake_bytes_ += arrived_end_;
  return {};
}

bool TlsSession::receive_for_openssl(std::size_t bytes_wanted) {
  const Status receive_status = catch_bad_alloc([] { return "cannot receive"; },
                                                [&] { return receive_from_wire(bytes_wanted); });
  if (!receive_status.ok()) wire_failure_ = receive_status;
  return receive_status.ok();
}

// Only collects the bytes; flush() sends them. So OpenSSL never has to repeat a write, and one
// system call sends several records.
int TlsSession::write_wire(std::span<const std::byte> bytes) {
  const Status status =
      catch_bad_alloc([] { return "cannot send"; },
                      [&] {
                        unsent_bytes_.insert(unsent_bytes_.end(), bytes.begin(), bytes.end());
                        return Status();
                      });
  if (status.ok()) return length_of(bytes.size());
  wire_failure_ = status;
  return -1;
}

Status TlsSession::flush() {
  while (unsent_begin_ < unsent_bytes_.size()) {
    const auto remaining = std::span(unsent_bytes_).subspan(unsent_begin_);
    FARANDOLE_TRY_ASSIGN(const std::size_t count, wire_->try_send({}, remaining));
    if (count == 0) return {};
    unsent_begin_ += count;
  }
  unsent_bytes_.clear();
  unsent_begin_ = 0;
  return wire_->has_unsent() ? wire_->try_send({}, {}).status() : Status();
}

Status TlsSession::handshake_error() const {
  if (wire_failure_.code() == StatusCode::kStop) return wire_failure_;
  if (!wire_failure_.ok()) {
    // The listening end does not say why it closes a connection.
    return Status::rebuild_group(
        wire_failure_.message() +
        (was_connected() ? "; if it is a process of this job, it has another secret or epoch, or "
                           "too many others connect to it"
                         : ""));
  }
  if (side_ == Side::kListening)
    return Status::rebuild_group(format_text(
        "rejected a connection ({}) from a process that has not proven to belong to this job and "
        "epoch: {}",
        peer_.addresses, openssl_errors()));
  return Status::rebuild_group(format_text(
      "the process at the other end ({}) has not proven to be {} of this job and epoch: {}; "
      "perhaps another program uses that address, or it has another secret",
      peer_.addresses, name_of(link_.listener), openssl_errors()));
}

Status TlsSession::session_error(const char* action) const {
  return Status::rebuild_group(
      format_text("{} {} ({}) failed: {}; the bytes on the way were changed, or an end is broken",
                  action, name_of(peer_.party), peer_.addresses, openssl_errors()));
}

Result<TlsSession::Progress> TlsSession::try_handshake() {
  FARANDOLE_TRY(handshake_failure_);
  if (progress_ == Progress::kDone) return progress_;
  auto result = advance_handshake();
  if (!result.ok()) handshake_failure_ = result.status();
  return result;
}

Result<TlsSession::Progress> TlsSession::advance_handshake() {
  ::ERR_clear_error();
  if (!is_tls_handshake_done_) {
    const int ssl_result = ::SSL_do_handshake(ssl_);
    if (ssl_result != 1 && ::SSL_get_error(ssl_, ssl_result) != SSL_ERROR_WANT_READ)
      return handshake_error();
    // SSL_session_reused() returns 1 when the peer has proven that it knows the key of the link.
    if (::SSL_session_reused(ssl_) == 1) may_write_ = true;
    is_tls_handshake_done_ = ssl_result == 1;
    if (is_tls_handshake_done_) check_proof();
  }
  if (may_write_) FARANDOLE_TRY(flush());
  if (!is_tls_handshake_done_) return Progress::kWaiting;
  return confirm();
}

// The last step of the handshake: the listening end sends one sealed byte to the dialing end.
Result<TlsSession::Progress> TlsSession::confirm() {
  std::byte confirmation = kConfirmation;
  std::size_t count = 0;
  if (side_ == Side::kListening) {
    if (!std::exchange(confirmation_sent_, true) &&
        ::SSL_write_ex(ssl_, &confirmation, 1, &count) != 1)
      return handshake_error();
    FARANDOLE_TRY(flush());
    if (has_unsent()) return Progress::kWaiting;
  } else {
    const int ssl_result = ::SSL_read_ex(ssl_, &confirmation, 1, &count);
    if (ssl_result != 1 && ::SSL_get_error(ssl_, ssl_result) == SSL_ERROR_WANT_READ)
      return Progress::kConfirming;
    if (ssl_result != 1 || confirmation != kConfirmation) return handshake_error();
  }
  finish_handshake();
  return Progress::kDone;
}

// Stops the process if the peer has not proven that it knows the key of the link, even if OpenSSL
// reports success.
void TlsSession::check_proof() const {
  const SSL_CIPHER* cipher = ::SSL_get_current_cipher(ssl_);
  const bool is_proven = ::SSL_session_reused(ssl_) == 1 && ::SSL_version(ssl_) == TLS1_3_VERSION &&
                         cipher != nullptr &&
                         ::SSL_CIPHER_get_id(cipher) == TLS1_3_CK_AES_128_GCM_SHA256;
  CHECK(is_proven, "OpenSSL has finished a handshake without the key of the link");
}

void TlsSession::finish_handshake() {
  progress_ = Progress::kDone;
  peer_.party = side_ == Side::kDialing ? link_.listener : link_.dialer;
  peer_.epoch = link_.epoch;
  identity_ = {};
}

bool TlsSession::has_unsent() const {
  // The listening end sends nothing until the peer has proven its identity.
  const bool sealed_waits = may_write_ && !unsent_bytes_.empty();
  return sealed_waits || wire_->has_unsent();
}

bool TlsSession::has_received() const {
  if (opened_begin_ < opened_end_) return true;
  return may_have_received_ && (arrived_begin_ < arrived_end_ || ::SSL_has_pending(ssl_) == 1);
}

// One key must not seal an unlimited number of bytes. Making the next key costs a few microseconds.
Status TlsSession::change_key_if_due() {
  if (sealed_bytes_ < bytes_per_key_) return {};
  sealed_bytes_ = 0;
  if (::SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) return {};
  return session_error("changing the key to");
}

// Seals at most kRecordBytes bytes. OpenSSL writes the record to unsent_bytes_.
Status TlsSession::seal_record(std::span<const std::byte> bytes) {
  FARANDOLE_TRY(change_key_if_due());
  std::size_t count = 0;
  ::ERR_clear_error();
  if (::SSL_write_ex(ssl_, bytes.data(), bytes.size(), &count) != 1)
    return wire_failure_.ok() ? session_error("sending to") : wire_failure_;
  sealed_bytes_ += count;
  return {};
}

// Seals and sends until all bytes are sealed or the wire takes no more bytes.
Result<std::size_t> TlsSession::seal_and_send(std::span<const std::byte> bytes) {
  std::size_t sealed_bytes = 0;
  while (sealed_bytes < bytes.size() && unsent_bytes_.size() < kSystemCallBytes) {
    const auto record =
        bytes.subspan(sealed_bytes, std::min(kRecordBytes, bytes.size() - sealed_bytes));
    FARANDOLE_TRY(seal_record(record));
    sealed_bytes += record.size();
    if (sealed_bytes == bytes.size() || unsent_bytes_.size() >= kSystemCallBytes)
      FARANDOLE_TRY(flush());
  }
  return sealed_bytes;
}

Result<std::size_t> TlsSession::try_send(std::span<const std::byte> first,
                                         std::span<const std::byte> second) {
  CHECK(progress_ == Progress::kDone, "bytes can be sent only after the handshake");
  FARANDOLE_TRY(flush());
  if (has_unsent()) return std::size_t{0};
  if (first.empty() || second.empty()) return seal_and_send(first.empty() ? second : first);
  // Each record has a fixed cost, so a short header shares its record with the payload.
  if (first.size() >= kRecordBytes) return seal_and_send(first);
  const std::size_t payload_in_first = std::min(second.size(), kRecordBytes - first.size());
  first_record_.assign(first.begin(), first.end());
  first_record_.insert(first_record_.end(), second.begin(),
                       second.begin() + static_cast<std::ptrdiff_t>(payload_in_first));
  FARANDOLE_TRY_ASSIGN(const std::size_t sealed_of_first, seal_and_send(first_record_));
  if (sealed_of_first < first_record_.size() || has_unsent()) return sealed_of_first;
  FARANDOLE_TRY_ASSIGN(const std::size_t sealed_of_second,
                       seal_and_send(second.subspan(payload_in_first)));
  return sealed_of_first + sealed_of_second;
}

std::size_t TlsSession::take_opened(std::span<std::byte> into) {
  const auto count = std::min(into.size(), opened_end_ - opened_begin_);
  std::copy_n(opened_bytes_.data() + opened_begin_, count, into.begin());
  opened_begin_ += count;
  return count;
}

Result<std::size_t> TlsSession::try_receive(std::span<std::byte> into) {
  CHECK(progress_ == Progress::kDone, "bytes can be received only after the handshake");
  FARANDOLE_TRY(receive_failure_);
  std::size_t bytes_received = take_opened(into);
  if (bytes_received == into.size()) return bytes_received;
  // If no bytes have arrived, this check is faster than a call of OpenSSL.
  if (arrived_begin_ == arrived_end_ && ::SSL_has_pending(ssl_) == 0) {
    const bool is_filled = receive_for_openssl(kRecordHeaderBytes);
    if (!is_filled) receive_failure_ = wire_failure_;
    if (!is_filled && bytes_received == 0) return receive_failure_;
    if (arrived_end_ == 0) return bytes_received;
  }
  may_have_received_ = true;
  while (bytes_received < into.size() && receive_failure_.ok()) {
    const auto remaining = into.subspan(bytes_received);
    const bool is_short = remaining.size() < opened_bytes_.size();
    std::size_t count = 0;
    ::ERR_clear_error();
    const int ssl_result =
        is_short ? ::SSL_read_ex(ssl_, opened_bytes_.data(), opened_bytes_.size(), &count)
                 : ::SSL_read_ex(ssl_, remaining.data(), remaining.size(), &count);
    if (is_short) {
      opened_begin_ = 0;
      opened_end_ = count;
      count = take_opened(remaining);
    }
    bytes_received += count;
    if (ssl_result == 1) continue;
    may_have_received_ = false;
    const int error = ::SSL_get_error(ssl_, ssl_result);
    if (error == SSL_ERROR_WANT_READ) break;
    if (error == SSL_ERROR_ZERO_RETURN)
      receive_failure_ = Status::rebuild_group(
          format_text("{} has closed the connection ({})", name_of(peer_.party), peer_.addresses));
    else
      receive_failure_ = wire_failure_.ok() ? session_error("receiving from") : wire_failure_;
  }
  if (bytes_received > 0 || receive_failure_.ok()) return bytes_received;
  return receive_failure_;
}

Result<std::size_t> TlsSession::try_send_data(std::span<const std::byte> first,
                                              std::span<const std::byte> second) {
  if (link_.seals_data) return try_send(first, second);
  CHECK(progress_ == Progress::kDone, "bytes can be sent only after the handshake");
  FARANDOLE_TRY(flush());
  if (has_unsent()) return std::size_t{0};
  if (!first.empty()) FARANDOLE_TRY(seal_record(first));
  // The header is sent together with the data.
  const auto piece = second.first(std::min(second.size(), kClearSendBytes));
  FARANDOLE_TRY_ASSIGN(const std::size_t count, wire_->try_send(unsent_bytes_, piece));
  const std::size_t header_bytes_sent = std::min(count, unsent_bytes_.size());
  unsent_begin_ = header_bytes_sent;
  if (header_bytes_sent == unsent_bytes_.size()) FARANDOLE_TRY(flush());  // forgets the sent record
  const std::size_t payload_sent = count - header_bytes_sent;
  in_clear_data_ = payload_sent < second.size();
  return first.size() + payload_sent;
}

Result<std::size_t> TlsSession::try_receive_data(std::span<std::byte> into) {
  if (link_.seals_data) return try_receive(into);
  CHECK(progress_ == Progress::kDone, "bytes can be received only after the handshake");
  FARANDOLE_TRY(receive_failure_);
  if (::SSL_has_pending(ssl_) == 1 || opened_begin_ < opened_end_)
    receive_failure_ = Status::rebuild_group(
        format_text("{} ({}) has sealed more than the header of its data; it is broken",
                    name_of(peer_.party), peer_.addresses));
  FARANDOLE_TRY(receive_failure_);
  // The first bytes may have arrived together with the TLS record of their header.
  const auto count = std::min(into.size(), arrived_end_ - arrived_begin_);
  std::copy_n(arrived_bytes_.begin() + static_cast<std::ptrdiff_t>(arrived_begin_), count,
              into.begin());
  arrived_begin_ += count;
  if (count == into.size()) return count;
  const auto received = wire_->try_receive(into.subspan(count));
  if (received.ok()) return count + *received;
  receive_failure_ = received.status();
  return count > 0 ? Result<std::size_t>(count) : receive_failure_;
}

void TlsSession::close() {
  if (std::exchange(closed_, true)) return;
  // While the peer still expects data in clear, it would treat a closing record as a part of this
  // data.
  if (progress_ == Progress::kDone && !in_clear_data_) {
    ::SSL_shutdown(ssl_);
    ::ERR_clear_error();
    (void)flush().ok();  // the connection ends, so an error does not matter
  }
  wire_->close();
}

}  // namespace farandole
