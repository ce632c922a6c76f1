// Tests StoreClient and StoreServer together: disconnects, malformed messages, full buffers and
// missing descriptors.
#include "rendezvous/store_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/no_descriptors_in_test.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/serving_thread.h"
#include "rendezvous/store_client.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<StoreClient> client_of(ServingThread& serving, int rank) {
  auto client = StoreClient::connect(serving.client_end(rank).get());
  EXPECT_TRUE(client.ok()) << client.status().message();
  return std::move(client).value();
}

void send_request(const Descriptor& client_end, StoreRequestKind kind, std::uint64_t number,
                  const std::string& key) {
  const Bytes bytes = StoreRequest{kind, number, {key}, {}, 0, {}}.encode();
  ASSERT_EQ(::send(client_end.get(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
}

StoreReply receive_reply(const Descriptor& client_end) {
  Bytes answer(kUnixMessageBytesMax);
  const ssize_t size = ::recv(client_end.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  EXPECT_GT(size, 0);
  const auto bytes = static_cast<std::size_t>(std::max<ssize_t>(size, 0));
  return StoreReply::decode({answer.data(), bytes}).value_or(StoreReply{});
}

TEST(StoreServer, AWaitingWorkerLearnsThatTheLauncherEnds) {
  ServingThread serving(1);
  auto client = client_of(serving, 0);
  std::jthread waiting_thread([&client] {
    const auto value = client->wait("never", long_limit());
    EXPECT_EQ(value.status().code(), StatusCode::kStop);
    EXPECT_THAT(value.status().message(), HasSubstr("launcher"));
  });
  ASSERT_TRUE(client->set("alive", {}).ok());
  serving.stop();
  waiting_thread.join();
  EXPECT_EQ(client->set("key", {}).code(), StatusCode::kStop);
}

TEST(StoreServer, AMisbehavingWorkerIsCutOffAlone) {
  ServingThread serving(2);
  auto healthy_client = client_of(serving, 0);
  ASSERT_EQ(::send(serving.client_end(1).get(), "nonsense", 8, 0), 8);
  auto misbehaving_client = client_of(serving, 1);
  EXPECT_EQ(misbehaving_client->set("key", {}).code(), StatusCode::kStop);
  EXPECT_TRUE(healthy_client->set("key", {}).ok());
  EXPECT_THAT(serving.complaints(), ElementsAre(HasSubstr("rank 1")));
}

// In CVE-2026-25506 of MUNGE, a wrong length made the server write beyond its memory and reveal its
// key.
TEST(StoreServer, AMessageWithAWrongLengthGetsNoAnswer) {
  const Bytes valid_request =
      StoreRequest{StoreRequestKind::kSet, 1, {"key"}, "unless", 0, {}}.encode();
  const std::size_t count = 1 + sizeof(std::uint64_t);  // the offset of the number of keys
  const std::size_t key = count + 4, end_key = key + 4 + 3;
  for (const std::size_t offset : {count, key, end_key}) {
    for (const std::uint32_t length : {200U, 1U << 16U, 1U << 31U, 0xffff'fff0U, 0xffff'ffffU}) {
      ServingThread serving(2);
      auto healthy_client = client_of(serving, 0);
      Bytes wrong_length = valid_request;
      std::memcpy(wrong_length.data() + offset, &length, sizeof(length));
      ASSERT_EQ(::send(serving.client_end(1).get(), wrong_length.data(), wrong_length.size(), 0),
                static_cast<ssize_t>(wrong_length.size()));
      std::byte answer{};
      EXPECT_EQ(::recv(serving.client_end(1).get(), &answer, 1, 0), 0) << offset << " " << length;
      EXPECT_TRUE(healthy_client->set("key", {}).ok());
      EXPECT_THAT(serving.complaints(), ElementsAre(HasSubstr("rank 1")));
    }
  }
}

TEST(StoreServer, AWorkerThatLeavesDisturbsNoOther) {
  ServingThread serving(2);
  auto healthy_client = client_of(serving, 0);
  {
    // This worker disconnects while its wait is unanswered.
    send_request(serving.client_end(1), StoreRequestKind::kWait, 1, "key");
    serving.client_end(1).reset();
  }
  EXPECT_TRUE(healthy_client->set("key", {}).ok());
  EXPECT_TRUE(healthy_client->wait("key", long_limit()).ok());
  EXPECT_THAT(serving.complaints(), IsEmpty());
}

TEST(StoreServer, AWorkerThatHasLeftWaitsForNothing) {
  const auto server = StoreServer::create("the launcher").value();
  Descriptor end = server->add_client("rank 0").value();
  send_request(end, StoreRequestKind::kWait, 1, "key");
  EXPECT_THAT(server->serve_ready(), IsEmpty());
  end.reset();
  EXPECT_THAT(server->serve_ready(), IsEmpty());
  EXPECT_TRUE(server->set("key", {}).ok());
}

TEST(StoreServer, CancelledWaitsDoNotCount) {
  const auto server = StoreServer::create("the launcher").value();
  const Descriptor end = server->add_client("rank 0").value();
  for (std::uint64_t number = 1; number <= 2000; ++number) {
    send_request(end, StoreRequestKind::kWait, number, "key");
    send_request(end, StoreRequestKind::kCancel, number, "key");
    EXPECT_THAT(server->serve_ready(), IsEmpty());
    const StoreReply reply = receive_reply(end);
    EXPECT_EQ(reply.number, number);
    ASSERT_EQ(reply.status.code(), StatusCode::kRetry) << reply.status.message();
  }
}

TEST(StoreServer, TheLaunchersWritesReachWaitingWorkers) {
  auto server = StoreServer::create("the launcher");
  ASSERT_TRUE(server.ok());
  auto end = (*server)->add_client("rank 0");
  ASSERT_TRUE(end.ok());
  send_request(*end, StoreRequestKind::kWait, 1, "key");
  EXPECT_THAT((*server)->serve_ready(), IsEmpty());
  const Bytes value{std::byte{7}};
  ASSERT_TRUE((*server)->set("key", value).ok());
  EXPECT_EQ((*server)->set("key", {}).code(), StatusCode::kFixCall);
  EXPECT_EQ((*server)->add("count", 2).value(), 2);
  const StoreReply reply = receive_reply(*end);
  EXPECT_EQ(reply.number, 1U);
  EXPECT_THAT(reply.values, ElementsAre(StoreReplyValue{value, 0}));
}

// In a large job, each member asks for the keys of all members in one request.
TEST(StoreServer, OneRequestAndOneReplyServeManyKeys) {
  const auto server = StoreServer::create("the launcher").value();
  const Descriptor end = server->add_client("rank 0").value();
  StoreRequest request{
      .kind = StoreRequestKind::kWait, .number = 1, .keys = {}, .end_key = {}, .value = {}};
  std::vector<StoreReplyValue> values;
  for (std::uint8_t k = 0; k < kUnixMessageDescriptorsMax / 2; ++k) {
    request.keys.push_back("key " + std::to_string(k));
    values.push_back({Bytes{std::byte{k}}, 0});
  }
  const Bytes bytes = request.encode();
  ASSERT_EQ(::send(end.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_THAT(server->serve_ready(), IsEmpty());
  // The last key is set first, so the request must wait until the first key is set.
  for (std::size_t k = values.size(); k-- > 0;)
    ASSERT_TRUE(server->set(request.keys[k], values[k].bytes).ok());
  const StoreReply reply = receive_reply(end);
  EXPECT_EQ(reply.number, 1U);
  EXPECT_THAT(reply.values, ElementsAreArray(values));
}

TEST(StoreServer, ADroppedWorkerIsIgnoredEvenIfItsSocketHasACopy) {
  auto server = StoreServer::create("the launcher");
  ASSERT_TRUE(server.ok());
  auto end = (*server)->add_client("rank 0");
  ASSERT_TRUE(end.ok());
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  const Descriptor read_end(pipe_ends[0]);
  Descriptor write_end(pipe_ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    write_end.reset();
    char byte = 0;
    ::_exit(::read(read_end.get(), &byte, 1) == 0 ? 0 : 1);
  }
  ASSERT_EQ(::send(end->get(), "nonsense", 8, 0), 8);
  EXPECT_THAT((*server)->serve_ready(), ElementsAre(HasSubstr("rank 0")));
  ASSERT_EQ(::send(end->get(), "nonsense", 8, 0), 8);
  EXPECT_THAT((*server)->serve_ready(), IsEmpty());
  write_end.reset();
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(StoreServer, AWorkerThatReadsNothingBlocksNoOther) {
  ServingThread serving(2);
  auto healthy_client = client_of(serving, 0);
  ASSERT_TRUE(healthy_client->set("big", Bytes(kStoreValueBytesMax)).ok());
  const Bytes request_bytes = StoreRequest{StoreRequestKind::kWait, 1, {"big"}, {}, 0, {}}.encode();
  // Sends requests of the silent client until all buffers are full of requests and replies.
  const int silent_descriptor = serving.client_end(1).get();
  int sent_requests = 0;
  for (int rejected_requests = 0; rejected_requests < 100;) {
    if (::send(silent_descriptor, request_bytes.data(), request_bytes.size(), MSG_DONTWAIT) < 0)
      ++rejected_requests;
    else
      ++sent_requests;
    EXPECT_TRUE(healthy_client->add("count", 1).ok());
  }
  // When the silent client begins to read, it must get every answer.
  Bytes answer(kUnixMessageBytesMax);
  for (int i = 0; i < sent_requests; ++i)
    ASSERT_GT(::recv(silent_descriptor, answer.data(), answer.size(), 0),
              static_cast<ssize_t>(kStoreValueBytesMax));
}

TEST(StoreServer, SaysWhetherDescriptorsAreStillToBeSent) {
  auto server = StoreServer::create("the test").value();
  const auto writer = UnixSocket::adopt(server->add_client("writer").value()).value();
  const auto reader = UnixSocket::adopt(server->add_client("reader").value()).value();
  const Bytes set_request =
      StoreRequest{StoreRequestKind::kSet, 1, {"key"}, {}, 0, Bytes(kStoreValueBytesMax)}.encode();
  ASSERT_EQ(writer.try_send(set_request, std::array{STDIN_FILENO}), Status());
  EXPECT_THAT(server->serve_ready(), IsEmpty());
  EXPECT_FALSE(server->has_unsent_descriptors());

  const Bytes request_bytes = StoreRequest{StoreRequestKind::kWait, 1, {"key"}, {}, 0, {}}.encode();
  int requests = 0;
  for (; requests < 1000 && !server->has_unsent_descriptors(); ++requests) {
    ASSERT_EQ(reader.try_send(request_bytes, {}), Status());
    EXPECT_THAT(server->serve_ready(), IsEmpty());
  }
  EXPECT_TRUE(server->has_unsent_descriptors()) << "the socket takes " << requests << " answers";
  for (int answers = 0; answers < requests; ++answers) {
    const auto answer = reader.try_receive();
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->descriptors.size(), 1U);
    EXPECT_THAT(server->serve_ready(), IsEmpty());
  }
  EXPECT_FALSE(server->has_unsent_descriptors());
}

TEST(StoreServer, ASecondClientOfADescriptorIgnoresOldReplies) {
  ServingThread serving(1);
  const Bytes request_bytes =
      StoreRequest{StoreRequestKind::kAdd, 1, {"count"}, {}, 5, {}}.encode();
  ASSERT_EQ(::send(serving.client_end(0).get(), request_bytes.data(), request_bytes.size(), 0),
            static_cast<ssize_t>(request_bytes.size()));
  auto client = client_of(serving, 0);
  EXPECT_EQ(client->add("count", 1).value(), 6);
}

// Answers one request with a descriptor, like a launcher.
void answer_with_descriptor(const UnixSocket& server) {
  const auto message = server.receive(long_limit().deadline);
  ASSERT_TRUE(message.ok());
  const auto request = StoreRequest::decode(message->bytes);
  ASSERT_TRUE(request.has_value());
  const StoreReply reply{
      .number = request->number, .status = {}, .sum = 0, .values = {StoreReplyValue{{}, 1}}};
  ASSERT_TRUE(
      server.send(reply.encode(), {{server.descriptor().get()}}, long_limit().deadline).ok());
}

TEST(StoreClient, GoesOnAfterAnAnswerWhoseDescriptorsDoNotFit) {
  auto sockets = UnixSocket::make_pair();
  ASSERT_TRUE(sockets.ok());
  auto client = StoreClient::connect(sockets->second.descriptor().get());
  ASSERT_TRUE(client.ok());
  std::jthread server([&] {
    for (int i = 0; i < 3; ++i) answer_with_descriptor(sockets->first);
  });
  const auto descriptors_of_answer = [&] {
    const auto value = (*client)->receive("key", long_limit());
    return value.ok() ? value->descriptors.size() : 0;
  };
  EXPECT_EQ(descriptors_of_answer(), 1U);
  const auto lost_result = [&] {
    const NoFreeDescriptors no_free_descriptors;
    return (*client)->receive("key", long_limit());
  }();
  EXPECT_EQ(lost_result.status().code(), StatusCode::kStop);
  EXPECT_THAT(lost_result.status().message(), HasSubstr("ulimit -n"));
  EXPECT_EQ(descriptors_of_answer(), 1U);
}

TEST(StoreClient, ReplacesAValueOnlyAsLongAsTheLimitAllows) {
  auto sockets = UnixSocket::make_pair();
  ASSERT_TRUE(sockets.ok());
  const auto client = StoreClient::from_socket(std::move(sockets->second));
  int interrupt_checks = 0;
  const std::function<bool()> interrupted = [&interrupt_checks] { return ++interrupt_checks == 2; };
  EXPECT_EQ(client->replace("key", {}, {TimePoint::max(), interrupted}),
            Status::retry("interrupted while waiting for the rendezvous key `key`"));
}

TEST(StoreClient, AMalformedAnswerEndsTheConnection) {
  auto sockets = UnixSocket::make_pair();
  ASSERT_TRUE(sockets.ok());
  auto client = StoreClient::connect(sockets->second.descriptor().get());
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE(sockets->first.send(Bytes(3), {}, long_limit().deadline).ok());
  for (int i = 0; i < 2; ++i) {
    const auto value = (*client)->wait("key", long_limit());
    EXPECT_EQ(value.status().code(), StatusCode::kStop);
    EXPECT_THAT(value.status().message(), HasSubstr("malformed message"));
  }
}

TEST(StoreClient, AnAnswerThatDoesNotFitTheWaitIsRejected) {
  auto sockets = UnixSocket::make_pair();
  ASSERT_TRUE(sockets.ok());
  auto client = StoreClient::connect(sockets->second.descriptor().get());
  ASSERT_TRUE(client.ok());
  const StoreReplyValue plain{Bytes(1), 0};
  const std::vector<std::vector<std::optional<StoreReplyValue>>> mismatched_values{
      {}, {plain, plain, plain}, {plain, std::nullopt}, {plain, StoreReplyValue{{}, 1}}};
  std::jthread server([&] {
    for (const auto& values : mismatched_values) {
      const auto message = sockets->first.receive(long_limit().deadline);
      const auto request = StoreRequest::decode(message.value().bytes);
      const StoreReply reply{
          .number = request.value().number, .status = {}, .sum = 0, .values = values};
      ASSERT_TRUE(sockets->first.send(reply.encode(), {}, long_limit().deadline).ok());
    }
  });
  for (std::size_t i = 0; i < mismatched_values.size(); ++i) {
    const auto values = (*client)->wait_for_all({"a", "b"}, "", long_limit());
    EXPECT_EQ(values.status().code(), StatusCode::kStop);
    EXPECT_THAT(values.status().message(), HasSubstr("malformed message")) << i;
  }
}

TEST(StoreClient, ManyThreadsThatWaitReturnAtTheDeadline) {
  ServingThread serving(1);
  auto client = client_of(serving, 0);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&client, i] {
      const WaitLimit limit{std::chrono::steady_clock::now() + std::chrono::seconds(1),
                            kNotInterrupted};
      const auto value = client->wait("never " + std::to_string(i), limit);
      EXPECT_EQ(value.status().code(), StatusCode::kRetry);
    });
  threads.clear();
  EXPECT_TRUE(client->set("alive", {}).ok());
}

TEST(StoreClient, NeedsADescriptor) {
  ServingThread serving(1);
  const NoFreeDescriptors no_free_descriptors;
  const auto client = StoreClient::connect(serving.client_end(0).get());
  EXPECT_EQ(client.status().code(), StatusCode::kStop);
  EXPECT_THAT(client.status().message(), HasSubstr("cannot duplicate the socket"));
}

TEST(StoreServer, ReadsANumberForTheLauncher) {
  const auto server = StoreServer::create("the launcher");
  ASSERT_TRUE(server.ok());
  ByteWriter writer;
  writer.put(std::int64_t{7});
  ASSERT_TRUE((*server)->set("number", writer.take()).ok());
  ASSERT_TRUE((*server)->set("empty", {}).ok());
  ASSERT_TRUE((*server)->add("counter", 7).ok());
  EXPECT_EQ((*server)->number_at("number"), 7);
  for (const auto* key : {"empty", "counter", "absent"})
    EXPECT_EQ((*server)->number_at(key), std::nullopt) << key;
}

TEST(StoreServer, ReadsATextForTheLauncher) {
  const auto server = StoreServer::create("the launcher");
  ASSERT_TRUE(server.ok());
  ByteWriter writer;
  writer.put_text("hen");
  ASSERT_TRUE((*server)->set("text", writer.take()).ok());
  ASSERT_TRUE((*server)->set("empty", {}).ok());
  ASSERT_TRUE((*server)->add("counter", 7).ok());
  EXPECT_EQ((*server)->text_at("text"), "hen");
  for (const auto* key : {"empty", "counter", "absent"})
    EXPECT_EQ((*server)->text_at(key), std::nullopt) << key;
}

TEST(StoreServer, NeedsADescriptor) {
  const NoFreeDescriptors no_free_descriptors;
  const auto server = StoreServer::create("the launcher");
  EXPECT_EQ(server.status().code(), StatusCode::kStop);
  EXPECT_THAT(server.status().message(), HasSubstr("epoll_create1 failed"));
}

TEST(StoreServer, NamesTheSenderOfDescriptorsThatDoNotFit) {
  ServingThread serving(1);
  auto client = client_of(serving, 0);
  LocalValue value;
  value.descriptors.emplace_back(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  {
    const NoFreeDescriptors no_free_descriptors;
    const Status share_status = client->share("key", std::move(value));
    EXPECT_EQ(share_status.code(), StatusCode::kStop);
    EXPECT_THAT(share_status.message(), HasSubstr("the launcher lost descriptors"));
  }
  EXPECT_TRUE(client->set("key", {}).ok());
}

TEST(StoreServer, TooManyWaitsOfAWorkerAreAnError) {
  ServingThread serving(1);
  auto socket = UnixSocket::adopt(std::move(serving.client_end(0)));
  ASSERT_TRUE(socket.ok());
  StoreRequest request{
      .kind = StoreRequestKind::kWait, .number = 0, .keys = {"never"}, .end_key = {}, .value = {}};
  for (; request.number <= 1024; ++request.number)
    ASSERT_TRUE(socket->send(request.encode(), {}, long_limit().deadline).ok());
  const auto message = socket->receive(long_limit().deadline);
  ASSERT_TRUE(message.ok());
  const auto reply = StoreReply::decode(message->bytes);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->number, 1024U);
  EXPECT_EQ(reply->status, Status::fix_call("more than 1024 waits at the same time in one worker"));
}

TEST(StoreClient, DoesNotPassItsDescriptorToChildren) {
  ServingThread serving(1);
  ASSERT_EQ(::fcntl(serving.client_end(0).get(), F_SETFD, 0), 0);
  auto client = client_of(serving, 0);
  EXPECT_EQ(::fcntl(serving.client_end(0).get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(StoreClient, ExplainsAWrongDescriptor) {
  const auto unset_result = StoreClient::connect(-1);
  EXPECT_EQ(unset_result.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(unset_result.status().message(), HasSubstr("not set"));
  const auto closed_result = StoreClient::connect(1 << 20);
  EXPECT_EQ(closed_result.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(closed_result.status().message(),
              HasSubstr("FARANDOLE_RENDEZVOUS_DESCRIPTOR=1048576"));
  EXPECT_THAT(closed_result.status().message(), HasSubstr("wrapper"));
}

}  // namespace
}  // namespace farandole
