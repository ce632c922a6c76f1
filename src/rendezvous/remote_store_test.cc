// Tests the properties of a Store that is reached over the network: strangers, clients that
// misbehave, a server that starts late or ends, and forks. store_test.cc tests the properties of
// all Stores.
#include "rendezvous/remote_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "network/tcp/dialer.h"
#include "network/tcp/job_in_test.h"
#include "rendezvous/frame_channel.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/serving_thread.h"
#include "rendezvous/store_client.h"

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::chrono::milliseconds kTestTimeout(60'000);  // so that a test that hangs fails

// The context that a server and its clients share.
const std::shared_ptr<const TlsContext>& context() {
  static const std::shared_ptr<const TlsContext> shared = context_of('s');
  return shared;
}

Result<std::unique_ptr<RemoteStore>> connect(const std::string& places,
                                             std::chrono::milliseconds limit = kTestTimeout,
                                             std::uint32_t rank = 0) {
  return RemoteStore::connect(
      {.places = places, .context = context(), .self = {Role::kWorker, rank}},
      {std::chrono::steady_clock::now() + limit, kNotInterrupted});
}

std::unique_ptr<RemoteStore> store_at(const std::string& places, std::uint32_t rank = 0) {
  auto store = connect(places, kTestTimeout, rank);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? std::move(store).value() : nullptr;
}

// An authenticated connection to the server, without the protocol of the Store.
std::unique_ptr<Connection> connection_to(const std::string& place, std::uint32_t rank) {
  const DialOptions options{.addresses = {address_of(place)},
                            .link = store_link({Role::kWorker, rank})};
  const auto dialer =
      Dialer::start(*context(), options, std::chrono::steady_clock::now(), test_deadline()).value();
  for (;;) {
    auto connection = dialer->try_connect(std::chrono::steady_clock::now());
    EXPECT_TRUE(connection.ok()) << connection.status().message();
    if (!connection.ok() || *connection) return std::move(connection).value();
    sleep_for({dialer->descriptor()}, dialer->next_deadline());
  }
}

// Receives until the server closes the connection.
void expect_end(Connection& connection) {
  Bytes bytes(1 << 16);
  auto received = connection.try_receive(bytes);
  for (; received.ok(); received = connection.try_receive(bytes))
    if (*received == 0) sleep_for({connection.descriptor()}, test_deadline());
  EXPECT_EQ(received.status().code(), StatusCode::kRebuildGroup);
}

TEST(StorePlaces, AreListsOfHostsWithPorts) {
  const auto places = parse_store_places("fox:4711,10.0.0.1:1,[fd00::1]:65535").value();
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[0].host, "fox");
  EXPECT_EQ(places[0].port, 4711);
  EXPECT_EQ(places[1].host, "10.0.0.1");
  EXPECT_EQ(places[2].host, "fd00::1");
  EXPECT_EQ(places[2].port, 65535);
  for (const char* const invalid_places :
       {"", "fox", ":1", "fox:", "fox:0", "fox:65536", "fox:1x", "fox:1,", "fd00::1:4711",
        "[fox]:1", "f ox:1", "fox:1 ,hen:1", "[]:1"})
    EXPECT_EQ(parse_store_places(invalid_places).status().code(), StatusCode::kFixCall)
        << invalid_places;
  EXPECT_THAT(parse_store_places("fox").status().message(),
              HasSubstr("FARANDOLE_JOB_STORE: \"fox\": the port is missing; write HOST:PORT"));
}

// The first name is never known, and no process listens at the second place.
TEST(RemoteStore, AnyOfThePlacesMayWork) {
  ServingThread serving(0, context().get());
  const HostLookup look_up = [](const std::string& name,
                                std::uint16_t port) -> Result<std::vector<SocketAddress>> {
    if (name == "nobody") return Status::retry("nobody is unknown");
    return look_up_host(name, port);
  };
  const auto store = RemoteStore::connect({.places = "nobody:1,127.0.0.1:1," + serving.place(),
                                           .context = context(),
                                           .self = {Role::kWorker, 0},
                                           .look_up = look_up},
                                          long_limit());
  ASSERT_TRUE(store.ok()) << store.status().message();
  EXPECT_TRUE((*store)->set("key", {}).ok());
}

TEST(RemoteStore, WaitsForAServerThatStartsLaterAndForItsName) {
  // The server ends in this line, so its port is free again.
  std::string place = ServingThread(0, context().get()).place();
  const auto port = static_cast<std::uint16_t>(std::stoi(place.substr(place.find(':') + 1)));
  std::atomic<int> look_ups = 0;
  std::atomic<bool> is_known = false;
  std::jthread client([&] {
    const auto store = RemoteStore::connect(
        {.places = "late:" + std::to_string(port),
         .context = context(),
         .self = {Role::kWorker, 0},
         .look_up = [&](const std::string&,
                        std::uint16_t look_up_port) -> Result<std::vector<SocketAddress>> {
           ++look_ups;
           look_ups.notify_all();
           if (!is_known) return Status::retry("late is unknown");
           return std::vector{address_of("127.0.0.1:" + std::to_string(look_up_port))};
         }},
        long_limit());
    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_TRUE((*store)->set("key", {}).ok());
  });
  const auto wait_for_look_ups = [&](int count) {
    for (int seen = look_ups; seen < count; seen = look_ups) look_ups.wait(seen);
  };
  wait_for_look_ups(2);
  is_known = true;
  wait_for_look_ups(4);  // so the client has failed to connect at least once
  ServingThread serving(0, context().get(), {.port_first = port, .port_last = port});
  client.join();
}

TEST(RemoteStore, AnErrorNamesThePlacesTheTimeAndTheLastError) {
  const auto refused_store = connect("127.0.0.1:1", std::chrono::milliseconds(1100));
  EXPECT_EQ(refused_store.status().code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(
      refused_store.status().message(),
      AllOf(ContainsRegex("could not connect to the rendezvous of the job at 127\\.0\\.0\\.1:1 in "
                          "[0-9]+ s: "),
            HasSubstr("Does the launcher or rank 0 run there, with the secret of this job")));
  int interrupt_checks = 0;
  const std::function<bool()> interrupted = [&interrupt_checks] { return ++interrupt_checks > 2; };
  const auto interrupted_store =
      RemoteStore::connect({.places = "127.0.0.1:1", .context = context(), .self = {}},
                           {long_limit().deadline, interrupted});
  EXPECT_EQ(interrupted_store.status().code(), StatusCode::kRetry);
  EXPECT_THAT(interrupted_store.status().message(),
              HasSubstr("interrupted while connecting to the rendezvous"));
}

TEST(RemoteStore, AStrangerWithoutTheSecretGetsNothing) {
  ServingThread serving(0, context().get());
  const std::shared_ptr<const TlsContext> other_context = context_of('x');
  const auto stranger_store = RemoteStore::connect(
      {.places = serving.place(), .context = other_context, .self = {}},
      {std::chrono::steady_clock::now() + std::chrono::milliseconds(500), kNotInterrupted});
  EXPECT_EQ(stranger_store.status().code(), StatusCode::kRebuildGroup);
  EXPECT_TRUE(store_at(serving.place())->set("key", {}).ok());
  EXPECT_THAT(serving.complaints(), IsEmpty());
}

// When the time limit of the handshake is over, the server closes the connection of a stranger that
// sends nothing, even if no other event wakes the server.
TEST(RemoteStore, AnIdleStrangerIsClosed) {
  ServingThread serving(0, context().get(), {.handshake_time_max = std::chrono::milliseconds(500)});
  auto idle_connection = TcpConnection::dial(address_of(serving.place()), {}, {}).value();
  expect_end(*idle_connection);
  EXPECT_TRUE(store_at(serving.place())->set("key", {}).ok());
}

TEST(RemoteStore, AMemberThatMisbehavesIsCutOffAlone) {
  ServingThread serving(0, context().get());
  const auto healthy_client = store_at(serving.place(), 1);
  const FrameHeaderBytes nonsense{};
  const auto control = encode_frame_header({.type = FrameType::kControl, .length = 1});
  const auto too_long =
      encode_frame_header({.type = FrameType::kStore, .length = kStoreMessageBytesMax + 1});
  const auto wrong_number =
      encode_frame_header({.type = FrameType::kStore, .sequence = 1, .length = 1});
  Bytes no_request(kFrameHeaderBytes + 1);
  std::ranges::copy(encode_frame_header({.type = FrameType::kStore, .length = 1}),
                    no_request.begin());
  std::uint32_t rank = 2;
  for (const std::span<const std::byte> bytes : {std::span<const std::byte>(nonsense),
                                                 {control},
                                                 {too_long},
                                                 {wrong_number},
                                                 {no_request}}) {
    const auto misbehaving_client = connection_to(serving.place(), rank++);
    ASSERT_EQ(misbehaving_client->try_send({}, bytes).value(), bytes.size());
    expect_end(*misbehaving_client);
    EXPECT_TRUE(healthy_client->add("count", 1).ok());
  }
  EXPECT_THAT(
      serving.complaints(),
      ElementsAre(AllOf(HasSubstr("worker 2 ("), HasSubstr("was cut off from the rendezvous")),
                  HasSubstr("worker 3 ("), HasSubstr("worker 4 ("), HasSubstr("worker 5 ("),
                  AllOf(HasSubstr("worker 6 ("), HasSubstr("a malformed message of 1 bytes"))));
}

// The answers to this member fill all socket buffers and then the 4 MiB that the server keeps for
// the member.
TEST(RemoteStore, AMemberThatReadsNoAnswersIsCutOff) {
  ServingThread serving(0, context().get());
  const auto healthy_client = store_at(serving.place(), 1);
  FrameChannel silent_channel(connection_to(serving.place(), 2));
  for (std::uint64_t number = 0; number < 600; ++number) {
    const Bytes wait_request =
        StoreRequest{StoreRequestKind::kWait, number, {"big"}, {}, 0, {}}.encode();
    ASSERT_TRUE(silent_channel.send(wait_request, {}, test_deadline()).ok());
  }
  const Bytes last_request =
      StoreRequest{StoreRequestKind::kAdd, 600, {"sent"}, {}, 1, {}}.encode();
  ASSERT_TRUE(silent_channel.send(last_request, {}, test_deadline()).ok());
  while (healthy_client->add("sent", 0).value() == 0)
    continue;  // until the server has read all requests
  ASSERT_TRUE(healthy_client->set("big", Bytes(kStoreValueBytesMax)).ok());
  while (serving.complaints().empty()) ASSERT_TRUE(healthy_client->add("count", 1).ok());
  EXPECT_THAT(serving.complaints(),
              ElementsAre(AllOf(HasSubstr("worker 2 ("), HasSubstr("does not read its answers"))));
}

TEST(RemoteStore, AWaitingMemberLearnsThatTheServerEnds) {
  ServingThread serving(0, context().get());
  const auto store = store_at(serving.place());
  std::jthread waiting_thread([&store] {
    const auto value = store->wait("never", long_limit());
    EXPECT_EQ(value.status().code(), StatusCode::kStop);
    EXPECT_THAT(value.status().message(),
                AllOf(HasSubstr("the process that serves the rendezvous of this job (127.0.0.1:"),
                      HasSubstr("has ended or has closed the connection to this worker (")));
  });
  ASSERT_TRUE(store->set("alive", {}).ok());
  serving.stop();
  waiting_thread.join();
  EXPECT_EQ(store->set("key", {}).code(), StatusCode::kStop);
}

TEST(RemoteStore, AMemberThatLeavesDisturbsNoOther) {
  ServingThread serving(0, context().get());
  const auto store = store_at(serving.place(), 1);
  store_at(serving.place(), 2).reset();
  EXPECT_TRUE(store->set("key", {}).ok());
  EXPECT_THAT(serving.complaints(), IsEmpty());
}

// Clients of the same host and of other hosts use the same keys. Clients of other hosts get no
// descriptors.
TEST(RemoteStore, SharesItsKeysWithClientsOfTheHost) {
  ServingThread serving(1, context().get());
  const auto local_client = StoreClient::connect(serving.client_end(0).get()).value();
  const auto remote_client = store_at(serving.place());
  LocalValue value{Bytes(1, std::byte{7}), {}};
  value.descriptors.emplace_back(::dup(STDIN_FILENO));
  ASSERT_TRUE(local_client->share("key", std::move(value)).ok());
  EXPECT_EQ(remote_client->wait("key", long_limit()).value(), Bytes(1, std::byte{7}));
  EXPECT_EQ(local_client->receive("key", long_limit()).value().descriptors.size(), 1U);
  ASSERT_TRUE(remote_client->set("back", {}).ok());
  EXPECT_TRUE(local_client->wait("back", long_limit()).ok());
}

// The child has the same TLS keys as its parent but must not use them.
TEST(RemoteStore, AForkedChildLeavesTheConnectionToItsParent) {
  ServingThread serving(0, context().get());
  auto store = store_at(serving.place());
  ASSERT_TRUE(store->set("before", {}).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    store.reset();
    ::_exit(0);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(store->set("after", {}).ok());
  EXPECT_THAT(serving.complaints(), IsEmpty());
}

// Sends and receives in turn until the message has arrived.
void expect_carried(FrameChannel& sender, FrameChannel& receiver, const Bytes& message) {
  Status sent = sender.try_send(message, {});
  auto received = receiver.try_receive();
  for (int turn = 0; turn < 100'000 && !(sent.ok() && received.ok()); ++turn) {
    if (!sent.ok()) sent = sender.try_send(message, {});
    if (!received.ok()) received = receiver.try_receive();
  }
  EXPECT_TRUE(sent.ok()) << sent.message();
  ASSERT_TRUE(received.ok()) << received.status().message();
  EXPECT_EQ(received->bytes, message);
}

// The wire moves bytes in pieces of every size.
TEST(FrameChannel, CarriesMessagesOfAllSizes) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto wire = std::make_shared<SimulatedWire>(seed);
    FrameChannel sender(std::make_unique<SimulatedConnection>(wire, 0));
    FrameChannel receiver(std::make_unique<SimulatedConnection>(wire, 1));
    for (const std::size_t size : {std::size_t{1}, std::size_t{44}, std::size_t{5000},
                                   std::size_t{70'000}, kStoreMessageBytesMax})
      expect_carried(sender, receiver, random_bytes(size, seed));
    for (const std::size_t size : {std::size_t{0}, kStoreMessageBytesMax + 1})
      EXPECT_EQ(sender.send(Bytes(size), {}, test_deadline()).code(), StatusCode::kFixCall);
  }
}

}  // namespace
}  // namespace farandole
