#include "network/tcp/tls_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "network/frame.h"
#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::size_t kLargeBytes = 700'000;

// Returns the bytes that a dialing end sends in its handshake and for `payload`.
Bytes recorded_stream(const TlsContext& context, const Bytes& payload) {
  TlsPair pair(1, context, context);
  pair.shake_hands();
  EXPECT_EQ(transfer(*pair.dialer, *pair.listener, payload), payload);
  return pair.wire->directions[0].sent;
}

struct Outcome {
  bool is_proven = false;
  Status error;
  std::size_t answered_bytes = 0;
};

// Sends `bytes` to a listening end. If `then_end` is true, the stream ends after these bytes;
// otherwise the stream stays open, but has no further bytes.
Outcome send_as_stranger(const TlsContext& context, std::span<const std::byte> bytes, bool then_end,
                         const AcceptedLinks& acceptance = test_acceptance()) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  const auto listener =
      TlsSession::listen(context, std::make_unique<SimulatedConnection>(wire, 1), acceptance);
  wire->directions[0].sent.assign(bytes.begin(), bytes.end());
  wire->directions[0].ended = then_end;
  Outcome outcome;
  for (int idle_rounds = 0; idle_rounds < 100 && !outcome.is_proven && outcome.error.ok();) {
    const std::size_t received_before = wire->directions[0].received;
    const auto progress = listener->try_handshake();
    if (!progress.ok()) outcome.error = progress.status();
    outcome.is_proven = progress.ok() && *progress == TlsSession::Progress::kDone;
    idle_rounds = received_before == wire->directions[0].received ? idle_rounds + 1 : 0;
  }
  listener->close();
  outcome.answered_bytes = wire->directions[1].sent.size();
  return outcome;
}

TEST(TlsSession, BothEndsKnowWhoTheOtherOneIs) {
  const auto context = context_of('s');
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    TlsPair pair(seed, *context, *context);
    pair.wire->piece_bytes_max = seed == 0 ? 1 : 50 * seed;
    pair.shake_hands();
    ASSERT_TRUE(pair.is_proven()) << seed << pair.dialer_error.message()
                                  << pair.listener_error.message();
    EXPECT_EQ(pair.listener->link(), test_link());
    EXPECT_EQ(pair.listener->peer().party, test_link().dialer);
    EXPECT_EQ(pair.dialer->peer().party, test_link().listener);
    EXPECT_EQ(pair.listener->peer().epoch, 3u);
    EXPECT_EQ(pair.dialer->peer().addresses, "simulated 0 -> 1");
  }
}

TEST(TlsSession, CarriesBothDirectionsAtOnce) {
  const auto context = context_of('s');
  for (const std::size_t piece : {7u, 1000u, 17'000u, 1'000'000u}) {
    TlsPair pair(piece, *context, *context);
    pair.wire->piece_bytes_max = piece;
    pair.shake_hands();
    const std::size_t bytes = piece < 100 ? 40'000 : kLargeBytes;
    const std::array<Bytes, 2> sent{random_bytes(bytes, 1), random_bytes(bytes, 2)};
    const std::array<TlsSession*, 2> ends{pair.dialer.get(), pair.listener.get()};
    std::array<Bytes, 2> received;
    std::array<std::size_t, 2> offered_bytes{};
    while (received[0].size() < bytes || received[1].size() < bytes) {
      for (const std::size_t i : {0u, 1u}) {
        // Splits the bytes at a random position into a header and a payload.
        const auto remaining = std::span(sent[i]).subspan(offered_bytes[i]);
        const auto first =
            remaining.first(std::min<std::size_t>(remaining.size(), pair.wire->random() % 99));
        const auto sent_now = ends[i]->try_send(first, remaining.subspan(first.size()));
        ASSERT_TRUE(sent_now.ok()) << sent_now.status().message();
        offered_bytes[i] += *sent_now;
        Bytes received_now(pair.wire->random() % 50'000);
        const auto count = ends[1 - i]->try_receive(received_now);
        ASSERT_TRUE(count.ok()) << count.status().message();
        received[i].insert(received[i].end(), received_now.begin(),
                           received_now.begin() + static_cast<std::ptrdiff_t>(*count));
      }
    }
    EXPECT_EQ(received[0], sent[0]);
    EXPECT_EQ(received[1], sent[1]);
  }
}

TEST(TlsSession, ShowsNoPayloadOnTheWire) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  pair.shake_hands();
  // Gradients may also repeat one byte, for example if all elements are 0.0.
  const Bytes payload(200'000, std::byte{0x5a});
  EXPECT_EQ(transfer(*pair.dialer, *pair.listener, payload), payload);
  const Bytes& wire = pair.wire->directions[0].sent;
  EXPECT_EQ(std::ranges::search(wire, std::span(payload).first(4)).size(), 0u);
}

TEST(TlsSession, AHeaderSharesItsRecordWithThePayload) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  pair.shake_hands();
  pair.wire->piece_bytes_max = 1 << 20;
  const std::size_t bytes_before = pair.wire->directions[0].sent.size();
  ASSERT_EQ(*pair.dialer->try_send(random_bytes(kFrameHeaderBytes, 1), random_bytes(1000, 2)),
            kFrameHeaderBytes + 1000);
  while (pair.dialer->has_unsent()) ASSERT_TRUE(pair.dialer->try_send({}, {}).ok());
  // A record adds 22 bytes: its header, its content type and the authentication tag.
  EXPECT_EQ(pair.wire->directions[0].sent.size() - bytes_before, kFrameHeaderBytes + 1000 + 22);
}

TEST(TlsSession, AHeaderIsReceivedBeforeItsPayload) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  pair.shake_hands();
  pair.wire->piece_bytes_max = 1 << 20;
  for (const std::size_t length : {1U, 100U, 467U, 468U, 469U, 5000U}) {
    const Bytes header = random_bytes(kFrameHeaderBytes, 1);
    const Bytes payload = random_bytes(length, 2);
    ASSERT_EQ(*pair.dialer->try_send(header, payload), header.size() + length);
    while (pair.dialer->has_unsent()) ASSERT_TRUE(pair.dialer->try_send({}, {}).ok());
    const auto receive = [&](std::size_t bytes) {
      Bytes received(bytes);
      for (std::size_t count = 0; count < bytes;)
        count += *pair.listener->try_receive(std::span(received).subspan(count));
      return received;
    };
    EXPECT_EQ(receive(header.size()), header);
    EXPECT_TRUE(pair.listener->has_received());
    EXPECT_EQ(receive(length), payload);
    EXPECT_FALSE(pair.listener->has_received());
  }
}

TEST(TlsSession, LongPartsAreSentInOrder) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  pair.shake_hands();
  pair.wire->piece_bytes_max = pair.wire->unread_bytes_max = 1 << 20;
  const Bytes first = random_bytes(40'000, 1);
  const Bytes second = random_bytes(40'000, 2);
  Bytes all_bytes = first;
  all_bytes.insert(all_bytes.end(), second.begin(), second.end());
  std::size_t sent = 0;
  Bytes received(all_bytes.size());
  for (std::size_t count = 0; count < all_bytes.size();) {
    const auto rest_of_first = std::span(first).subspan(std::min(sent, first.size()));
    const auto rest_of_second = std::span(second).subspan(sent - std::min(sent, first.size()));
    sent += *pair.dialer->try_send(rest_of_first, rest_of_second);
    count += *pair.listener->try_receive(std::span(received).subspan(count));
  }
  EXPECT_EQ(received, all_bytes);
}

TEST(TlsSession, ChangesItsKeyInTime) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  pair.shake_hands();
  pair.dialer->set_bytes_per_key(20'000);
  pair.listener->set_bytes_per_key(1);
  const Bytes payload = random_bytes(kLargeBytes, 1);
  EXPECT_EQ(transfer(*pair.dialer, *pair.listener, payload), payload);
  EXPECT_EQ(transfer(*pair.listener, *pair.dialer, payload), payload);
}

TEST(TlsSession, SaysWhetherItHoldsReceivedBytes) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  pair.shake_hands();
  EXPECT_FALSE(pair.listener->has_received());
  const Bytes payload = random_bytes(1000, 1);
  ASSERT_EQ(*pair.dialer->try_send({}, payload), payload.size());
  while (pair.dialer->has_unsent()) ASSERT_TRUE(pair.dialer->try_send({}, {}).ok());
  Bytes part(1);
  while (*pair.listener->try_receive(part) == 0) continue;
  EXPECT_TRUE(pair.listener->has_received());  // the rest of the record
  Bytes remaining_bytes(payload.size());
  EXPECT_EQ(*pair.listener->try_receive(remaining_bytes), payload.size() - 1);
  EXPECT_FALSE(pair.listener->has_received());
}

TEST(TlsSession, RefusesAnotherSecret) {
  const auto our_context = context_of('s');
  const auto their_context = context_of('t');
  TlsPair pair(1, *their_context, *our_context);
  pair.shake_hands();
  EXPECT_EQ(pair.listener_error.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(pair.listener_error.message(), HasSubstr("simulated 1 -> 0"));
  EXPECT_EQ(pair.dialer_error.code(), StatusCode::kRebuildGroup);
  EXPECT_TRUE(pair.wire->directions[1].sent.empty());
}

TEST(TlsSession, RefusesAnyOtherLink) {
  const auto context = context_of('s');
  std::vector<Link> other_links(6, test_link());
  other_links[0].job = 8;
  other_links[1].epoch = 2;
  other_links[2].epoch = 4;
  other_links[3].listener.number = 1;
  other_links[4].listener.role = Role::kLauncher;
  other_links[5].seals_data = false;
  for (const Link& link : other_links) {
    TlsPair pair(1, *context, *context, link);
    pair.shake_hands();
    EXPECT_EQ(pair.listener_error.code(), StatusCode::kRebuildGroup);
    EXPECT_EQ(pair.dialer_error.code(), StatusCode::kRebuildGroup);
    EXPECT_TRUE(pair.wire->directions[1].sent.empty());
  }
}

// A listening end must reject a stream that has a valid proof for one link and the name of another
// link.
TEST(TlsSession, AProofIsForOneLinkOnly) {
  const auto context = context_of('s');
  const Bytes stream = recorded_stream(*context, bytes_of("payload"));
  const Bytes name = identity_of(test_link());
  Link renamed_link = test_link();
  renamed_link.dialer.number = 2;
  Bytes changed_stream = stream;
  const auto place = std::ranges::search(changed_stream, name);
  ASSERT_EQ(place.size(), name.size());
  std::ranges::copy(identity_of(renamed_link), place.begin());
  const Outcome outcome = send_as_stranger(*context, changed_stream, false);
  EXPECT_FALSE(outcome.error.ok());
  EXPECT_EQ(outcome.answered_bytes, 0u);
}

TEST(TlsSession, RefusesAReplayedStream) {
  const auto context = context_of('s');
  const Bytes stream = recorded_stream(*context, random_bytes(1000, 1));
  AcceptedLinks next_epoch = test_acceptance();
  next_epoch.epoch = 4;
  AcceptedLinks other_job = test_acceptance();
  other_job.job = 8;
  AcceptedLinks other_rank = test_acceptance();
  other_rank.self.number = 1;
  for (const AcceptedLinks& acceptance : {test_acceptance(), next_epoch, other_job, other_rank}) {
    const Outcome outcome = send_as_stranger(*context, stream, false, acceptance);
    EXPECT_FALSE(outcome.is_proven);
    EXPECT_FALSE(outcome.error.ok());
    const bool is_intended_listener =
        identity_of({.job = acceptance.job,
                     .epoch = acceptance.epoch,
                     .dialer = test_link().dialer,
                     .listener = acceptance.self}) == identity_of(test_link());
    EXPECT_EQ(outcome.answered_bytes > 0, is_intended_listener);
  }
}

TEST(TlsSession, RefusesEveryTruncatedStream) {
  const auto context = context_of('s');
  const Bytes stream = recorded_stream(*context, {});
  ASSERT_LT(stream.size(), 500u);
  for (std::size_t length = 0; length < stream.size(); ++length) {
    const auto begin = std::span(stream).first(length);
    const Outcome ended_outcome = send_as_stranger(*context, begin, true);
    EXPECT_FALSE(ended_outcome.is_proven) << length;
    EXPECT_FALSE(ended_outcome.error.ok()) << length;
    const Outcome stalled_outcome = send_as_stranger(*context, begin, false);
    EXPECT_FALSE(stalled_outcome.is_proven) << length;
  }
}

TEST(TlsSession, SendsNothingToStrangers) {
  const auto context = context_of('s');
  std::vector<Bytes> streams{bytes_of("GET / HTTP/1.1\r\n\r\n"), bytes_of("SSH-2.0-Open\r\n"),
                             Bytes(5000, std::byte{0}), Bytes(5000, std::byte{0xff})};
  for (std::uint64_t seed = 0; seed < 200; ++seed) streams.push_back(random_bytes(5000, seed));
  for (const Bytes& stream : streams) {
    const Outcome outcome = send_as_stranger(*context, stream, false);
    EXPECT_EQ(outcome.error.code(), StatusCode::kRebuildGroup);
    EXPECT_EQ(outcome.answered_bytes, 0u);
  }
}

// The ClientHello of a program that does not have our key.
Bytes tls_client_hello(const char* groups) {
  SSL_CTX* settings = ::SSL_CTX_new(::TLS_client_method());
  EXPECT_EQ(SSL_CTX_set1_groups_list(settings, groups), 1);
  SSL* client = ::SSL_new(settings);
  BIO* output = ::BIO_new(::BIO_s_mem());
  ::SSL_set_bio(client, ::BIO_new(::BIO_s_mem()), output);
  EXPECT_LT(::SSL_connect(client), 1);
  Bytes hello(4000);
  hello.resize(static_cast<std::size_t>(::BIO_read(output, hello.data(), 4000)));
  ::SSL_free(client);
  ::SSL_CTX_free(settings);
  return hello;
}

TEST(TlsSession, SendsNothingToOrdinaryTlsClients) {
  const auto context = context_of('s');
  // The second ClientHello has a key share for a group that we do not use.
  for (const char* groups : {"X25519", "P-256:X25519"}) {
    const Outcome outcome = send_as_stranger(*context, tls_client_hello(groups), false);
    EXPECT_EQ(outcome.error.code(), StatusCode::kRebuildGroup);
    EXPECT_EQ(outcome.answered_bytes, 0u);
  }
}

TEST(TlsSession, RefusesChangedHandshakes) {
  const auto context = context_of('s');
  const Bytes stream = recorded_stream(*context, {});
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    Bytes changed_stream = stream;
    changed_stream[random() % changed_stream.size()] ^= static_cast<std::byte>(1U << random() % 8);
    EXPECT_FALSE(send_as_stranger(*context, changed_stream, true).is_proven);
  }
}

TEST(TlsSession, LimitsTheBytesOfAStranger) {
  const auto context = context_of('s');
  // A ClientHello that claims to have 65,535 bytes, in records of 16,384.
  Bytes stream{std::byte{22}, std::byte{3}, std::byte{1},   std::byte{0x40}, std::byte{0},
               std::byte{1},  std::byte{0}, std::byte{255}, std::byte{255}};
  stream.resize(100'000);
  const auto wire = std::make_shared<SimulatedWire>(1);
  const auto listener = TlsSession::listen(*context, std::make_unique<SimulatedConnection>(wire, 1),
                                           test_acceptance());
  wire->directions[0].sent = stream;
  while (listener->try_handshake().ok()) continue;
  EXPECT_LE(wire->directions[0].received, 4096u);
  EXPECT_EQ(listener->try_handshake().status().code(),
            StatusCode::kRebuildGroup);  // the error is final
}

TEST(TlsSession, ADialerRefusesAServerWithoutTheKey) {
  const auto context = context_of('s');
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto wire = std::make_shared<SimulatedWire>(seed);
    const auto dialer =
        TlsSession::dial(*context, std::make_unique<SimulatedConnection>(wire, 0), test_link());
    wire->directions[1].sent = random_bytes(5000, seed);
    Status error;
    while (error.ok()) error = dialer->try_handshake().status();
    EXPECT_EQ(error.code(), StatusCode::kRebuildGroup);
    EXPECT_THAT(error.message(), AnyOf(HasSubstr("has not proven to be worker 0"),
                                       HasSubstr("sent more than 4096 bytes")));
  }
}

TEST(TlsSession, NoticesChangedBytes) {
  const auto context = context_of('s');
  for (std::size_t place = 0; place < 60; ++place) {
    TlsPair pair(place, *context, *context);
    pair.shake_hands();
    const std::size_t bytes_before = pair.wire->directions[0].sent.size();
    ASSERT_TRUE(pair.dialer->try_send({}, random_bytes(38, 1)).ok());
    while (pair.dialer->has_unsent()) ASSERT_TRUE(pair.dialer->try_send({}, {}).ok());
    pair.wire->directions[0].sent[bytes_before + place] ^= std::byte{1};
    pair.dialer->close();
    Bytes into(100);
    auto received = pair.listener->try_receive(into);
    while (received.ok() && *received == 0) received = pair.listener->try_receive(into);
    ASSERT_FALSE(received.ok()) << place;
    EXPECT_EQ(received.status().code(), StatusCode::kRebuildGroup);
    EXPECT_EQ(pair.listener->try_receive(into).status(), received.status());
  }
}

TEST(TlsSession, DistinguishesAnEndFromACutStream) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  pair.shake_hands();
  ASSERT_TRUE(pair.dialer->try_send({}, bytes_of("last")).ok());
  while (pair.dialer->has_unsent()) ASSERT_TRUE(pair.dialer->try_send({}, {}).ok());
  pair.wire->piece_bytes_max = 1 << 20;
  pair.dialer->close();
  pair.dialer->close();  // a second call changes nothing
  Bytes into(100);
  std::size_t count = 0;
  while (count == 0) count = *pair.listener->try_receive(into);
  EXPECT_EQ(count, 4u);
  auto end_result = pair.listener->try_receive(into);
  while (end_result.ok()) end_result = pair.listener->try_receive(into);
  EXPECT_THAT(end_result.status().message(),
              AnyOf(HasSubstr("worker 1 has closed the connection"),
                    HasSubstr("the peer has ended the simulated connection")));

  TlsPair cut_pair(2, *context, *context);
  cut_pair.shake_hands();
  cut_pair.wire->directions[0].ended = true;
  auto cut_result = cut_pair.listener->try_receive(into);
  while (cut_result.ok()) cut_result = cut_pair.listener->try_receive(into);
  EXPECT_THAT(cut_result.status().message(),
              HasSubstr("the peer has ended the simulated connection"));
  EXPECT_EQ(cut_pair.listener->try_send({}, into).status().code(), StatusCode::kRebuildGroup);
}

// A link that does not seal data, and the acceptance for it.
std::pair<Link, AcceptedLinks> link_with_clear_data() {
  Link link = test_link();
  AcceptedLinks acceptance = test_acceptance();
  link.seals_data = acceptance.seals_data = false;
  return {link, acceptance};
}

// The peer would treat the closing record of the session as the rest of the data.
TEST(TlsSession, SendsNothingAfterHalfOfTheDataInClear) {
  const auto context = context_of('s');
  const auto [link, acceptance] = link_with_clear_data();
  for (const bool sends_all : {false, true}) {
    TlsPair pair(1, *context, *context, link, acceptance);
    pair.shake_hands();
    ASSERT_TRUE(pair.is_proven());
    pair.wire->always_moves = true;
    auto& out = pair.wire->directions[0];
    const Bytes header = random_bytes(44, 1);
    const Bytes data = random_bytes(1000, 2);
    pair.wire->unread_bytes_max = out.sent.size() - out.received + (sends_all ? 10'000 : 500);
    const auto sent = pair.dialer->try_send_data(header, data);
    ASSERT_EQ(sent.status(), Status());
    ASSERT_EQ(*sent < header.size() + data.size(), !sends_all);
    const std::size_t bytes_before = out.sent.size();
    pair.wire->unread_bytes_max = 1'000'000;
    pair.dialer->close();
    EXPECT_EQ(out.sent.size() > bytes_before, sends_all);
  }
}

// Sends headers that are followed by data, like the headers of frames.
TEST(TlsSession, ALinkThatDoesNotSealDataSealsHeadersAndProvesItsPeer) {
  const auto context = context_of('s');
  const auto [link, acceptance] = link_with_clear_data();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    TlsPair pair(seed, *context, *context, link, acceptance);
    pair.wire->piece_bytes_max = 1 + 100 * seed;
    pair.shake_hands();
    ASSERT_TRUE(pair.is_proven()) << pair.listener_error.message();
    EXPECT_EQ(pair.listener->link(), link);
    for (const std::size_t count : {5000UL, 1UL, 100'000UL}) {
      const Bytes header = random_bytes(44, seed);
      const Bytes data = random_bytes(count, seed + 1);
      Bytes received_header(header.size());
      Bytes received_data(data.size());
      std::size_t sent = 0;
      std::size_t received = 0;
      while (received < header.size() + count) {
        const auto header_sent = std::min(sent, header.size());
        const auto sent_now = pair.dialer->try_send_data(
            std::span(header).subspan(header_sent), std::span(data).subspan(sent - header_sent));
        ASSERT_EQ(sent_now.status(), Status());
        sent += *sent_now;
        const auto received_now =
            received < header.size()
                ? pair.listener->try_receive(std::span(received_header).subspan(received))
                : pair.listener->try_receive_data(
                      std::span(received_data).subspan(received - header.size()));
        ASSERT_EQ(received_now.status(), Status());
        received += *received_now;
      }
      EXPECT_EQ(received_header, header);
      EXPECT_EQ(received_data, data);
      const Bytes& wire = pair.wire->directions[0].sent;
      EXPECT_EQ(Bytes(wire.end() - static_cast<std::ptrdiff_t>(count), wire.end()), data);
      EXPECT_TRUE(std::ranges::search(wire, header).empty()) << "the header is sealed";
    }
    const Bytes sealed_payload = random_bytes(3000, seed);
    EXPECT_EQ(transfer(*pair.dialer, *pair.listener, sealed_payload), sealed_payload);
    EXPECT_TRUE(std::ranges::search(pair.wire->directions[0].sent, sealed_payload).empty());
    EXPECT_EQ(transfer(*pair.listener, *pair.dialer, sealed_payload), sealed_payload);
    EXPECT_FALSE(pair.listener->has_unsent());
  }
  const auto other_context = context_of('t');
  TlsPair stranger_pair(1, *other_context, *context, link, acceptance);
  stranger_pair.shake_hands();
  EXPECT_FALSE(stranger_pair.listener_error.ok());
}

TEST(TlsSession, BothEndsMustSealDataOrNeither) {
  const auto context = context_of('s');
  Link link = test_link();
  AcceptedLinks acceptance = test_acceptance();
  for (const bool seals : {true, false}) {
    link.seals_data = seals;
    acceptance.seals_data = !seals;
    TlsPair pair(1, *context, *context, link, acceptance);
    pair.shake_hands();
    EXPECT_FALSE(pair.is_proven());
    EXPECT_FALSE(pair.listener_error.ok());
  }
}

TEST(TlsSession, SealedBytesInPlaceOfDataAreAnError) {
  const auto context = context_of('s');
  const auto [link, acceptance] = link_with_clear_data();
  TlsPair pair(1, *context, *context, link, acceptance);
  pair.shake_hands();
  const Bytes long_header = random_bytes(100, 1);
  std::size_t sent = 0;
  while (sent < long_header.size())
    sent += pair.dialer->try_send(std::span(long_header).subspan(sent), {}).value();
  Bytes header(44);
  std::size_t received = 0;
  while (received < header.size()) {
    (void)pair.dialer->try_send({}, {});
    received += pair.listener->try_receive(std::span(header).subspan(received)).value();
  }
  EXPECT_THAT(pair.listener->try_receive_data(header).status().message(),
              HasSubstr("has sealed more than the header of its data"));
}

TEST(TlsSession, NeedsTheSecretOfThisProcess) {
  auto context = context_of('s');
  // In a child after fork(), the secret is gone. The handshake must fail and must not use an empty
  // secret.
  const pid_t child = ::fork();
  if (child == 0) {
    TlsPair pair(1, *context, *context);
    pair.shake_hands();
    ::_exit(pair.dialer_error.code() == StatusCode::kStop && !pair.listener_error.ok() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(TlsSessionDeathTest, CarriesNothingBeforeTheHandshake) {
  const auto context = context_of('s');
  TlsPair pair(1, *context, *context);
  Bytes into(1);
  EXPECT_DEATH((void)pair.dialer->try_send({}, into), "only after the handshake");
  EXPECT_DEATH((void)pair.dialer->try_receive(into), "only after the handshake");
}

}  // namespace
}  // namespace farandole
