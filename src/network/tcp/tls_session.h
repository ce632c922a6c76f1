// TlsSession: each end of a connection proves its identity to the other end, and the bytes are
// sealed. It is a Connection over another Connection, so the same code runs over TCP and, in tests,
// over a simulated connection.
//
// It uses TLS 1.3 from OpenSSL with one cipher suite (AES-128-GCM-SHA256), one group (X25519), and
// a key that both ends derive from the job's secret and their Link. There are no certificates,
// tickets or early data. If the link does not seal data, records and data in clear take turns on
// the wire: a sealed header says how many bytes in clear follow. The listening end sends nothing
// before the dialing end has proven that it has the key. So a stranger receives no bytes and only
// sees that the connection is closed. At the end of the handshake, the listening end sends one
// sealed byte, which tells the dialing end that it was accepted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "network/link.h"
#include "network/tcp/job_secret.h"

// Forward declarations of OpenSSL's SSL, SSL_CTX, BIO_METHOD and SSL_SESSION. Only tls_session.cc
// includes OpenSSL's headers.
struct ssl_st;
struct ssl_ctx_st;
struct bio_method_st;
struct ssl_session_st;

namespace farandole {

// The links that a listening end accepts: the links of this job and epoch in which `self` is the
// listener.
struct AcceptedLinks {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  Party self;
  bool seals_data = true;
};

// The settings that all sessions of a process share, and the job's secret. Any thread may use a
// context. It must outlive its sessions.
class TlsContext {
 public:
  // Errors: kStop if OpenSSL cannot set up TLS 1.3 as we need it.
  static Result<std::unique_ptr<TlsContext>> make(JobSecret secret);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  TlsContext(JobSecret secret, ssl_ctx_st* settings, bio_method_st* wire_method);

  JobSecret secret_;
  ssl_ctx_st* settings_;        // owned
  bio_method_st* wire_method_;  // owned
};

class TlsSession final : public Connection {
 public:
  enum class Progress : std::uint8_t {
    kWaiting,     // waits for bytes from the peer, or for room for unsent bytes
    kConfirming,  // dialing end: the peer has proven its identity, but its confirmation is missing
    kDone,
  };

  // After this many bytes, the session makes a new key. RFC 8446, 5.5, allows about 2^24.5 records
  // of 16 KiB with one key.
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{1} << 36U;

  static std::unique_ptr<TlsSession> dial(const TlsContext& context,
                                          std::unique_ptr<Connection> wire, const Link& link);
  static std::unique_ptr<TlsSession> listen(const TlsContext& context,
                                            std::unique_ptr<Connection> wire,
                                            const AcceptedLinks& acceptance);
  ~TlsSession() override;
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Continues the handshake as far as possible. After it has returned kDone, bytes can be sent and
  // received. Every error is final. Errors: those of the wire; kRebuildGroup if the peer does not
  // have the same secret, is not the peer of the link, or has sent bytes that are not a handshake.
  Result<Progress> try_handshake();
  // For the dialing end: whether there was a connection to the peer. The result is false after a
  // system error on this host (kStop). If reached_peer() is true and try_handshake() fails, the
  // peer has usually closed the connection.
  bool reached_peer() const { return wire_failure_.code() != StatusCode::kStop && was_connected(); }
  const Link& link() const { return link_; }  // for the listening end: valid after kDone

  Result<std::size_t> try_send(std::span<const std::byte> first,
                               std::span<const std::byte> second) override;
  Result<std::size_t> try_receive(std::span<std::byte> into) override;
  Result<std::size_t> try_send_data(std::span<const std::byte> first,
                                    std::span<const std::byte> second) override;
  Result<std::size_t> try_receive_data(std::span<std::byte> into) override;
  bool has_unsent() const override;
  bool has_received() const override;
  int descriptor() const override { return wire_->descriptor(); }
  void close() override;
  const ConnectionPeer& peer() const override { return peer_; }

  void set_bytes_per_key(std::uint64_t bytes) { bytes_per_key_ = bytes; }  // for tests

 private:
  friend class TlsContext;
  struct Callbacks;  // the functions that OpenSSL calls
  enum class Side : std::uint8_t { kDialing, kListening };

  TlsSession(const TlsContext& context, std::unique_ptr<Connection> wire, Side side);
  Result<Progress> advance_handshake();
  Result<Progress> confirm();
  void finish_handshake();
  void check_proof() const;
  Status handshake_error() const;
  // A connection existed if our first bytes were sent.
  bool was_connected() const { return side_ == Side::kDialing && unsent_bytes_.empty(); }
  Status session_error(const char* action) const;

  ssl_session_st* session_of(const Link& link);
  bool accepts(const Link& link) const;
  // OpenSSL reads and writes the wire through these two functions. They return −1 after an error
  // (wire_failure_), and 0 if no bytes can be moved now.
  int read_wire(std::span<std::byte> into);
  int write_wire(std::span<const std::byte> bytes);
  Status receive_from_wire(std::size_t bytes_wanted);
  bool receive_for_openssl(std::size_t bytes_wanted);  // false after an error (wire_failure_)
  std::size_t take_opened(std::span<std::byte> into);
  Status flush();
  Status seal_record(std::span<const std::byte> bytes);
  Result<std::size_t> seal_and_send(std::span<const std::byte> bytes);
  Status change_key_if_due();

  const TlsContext& context_;
  std::unique_ptr<Connection> wire_;
  Side side_;
  AcceptedLinks acceptance_;
  Link link_;
  Bytes identity_;
  ConnectionPeer peer_;
  ssl_st* ssl_ = nullptr;  // owned
  Progress progress_ = Progress::kWaiting;
  bool is_tls_handshake_done_ = false;  // if true, only the confirmation may be missing
  bool confirmation_sent_ = false;      // only on the listening end
  // False on the listening end until the peer has proven its identity.
  bool may_write_ = false;
  bool closed_ = false;
  bool in_clear_data_ = false;       // the last data in clear was not sent completely
  bool may_have_received_ = false;   // OpenSSL's buffer may contain a whole record
  std::size_t handshake_bytes_ = 0;  // how many bytes of the handshake were received
  std::uint64_t bytes_per_key_ = kBytesPerKey;
  std::uint64_t sealed_bytes_ = 0;  // how many bytes were sealed since the last change of the key
  Bytes unsent_bytes_;              // sealed bytes that the wire has not taken
  std::size_t unsent_begin_ = 0;
  // Bytes from the wire. OpenSSL has not taken the bytes [arrived_begin_, arrived_end_) yet.
  Bytes arrived_bytes_;
  std::size_t arrived_begin_ = 0;
  std::size_t arrived_end_ = 0;
  // Opened bytes. The caller has not received the bytes [opened_begin_, opened_end_) yet. With this
  // buffer, a header and a short payload need only one call of OpenSSL.
  std::array<std::byte, 512> opened_bytes_{};
  std::size_t opened_begin_ = 0;
  std::size_t opened_end_ = 0;
  Bytes first_record_;   // the content of one record: a header and the beginning of its payload
  Status wire_failure_;  // the error of the wire in a callback of OpenSSL
  Status receive_failure_;
  Status handshake_failure_;
};

}  // namespace farandole
