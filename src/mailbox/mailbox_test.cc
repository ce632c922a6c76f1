// All ranks run in one thread. Each rank has a mailbox, and the test decides in which order the
// mailboxes advance.
#include "mailbox/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace farandole {
namespace {

using ::testing::HasSubstr;

std::byte* aligned_address(std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (kFlagLineBytes - address % kFlagLineBytes) % kFlagLineBytes;
}

// A send or receive, with its memory.
struct SubmittedCall {
  Record record;
  std::vector<std::uint8_t> memory;
  bool finished = false;
};

class Job {
 public:
  explicit Job(int size) : size_(size) {
    for (int rank = 0; rank < size; ++rank) ranks_.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      bells_.push_back(std::make_unique<Doorbells>(aligned_address(bell_memory_), rank, size));
      mailboxes_.push_back(std::make_unique<Mailbox>(
          Mailbox::Transports{.memory = aligned_address(ring_memory_), .local_ranks = ranks_},
          *bells_.back(), recorder_, clock_));
    }
  }

  Mailbox& mailbox(int rank) { return *mailboxes_[static_cast<std::size_t>(rank)]; }
  SubmittedCall& send(int from, int to, std::vector<std::uint8_t> data, int tag = 0,
                      const std::string& channel = "") {
    Submission submission = message_to(to, tag, channel);
    submission.operation = Operation::kSend;
    return submit(from, std::move(submission), std::move(data));
  }
  SubmittedCall& receive(int to, int from, std::size_t size, int tag = 0,
                         const std::string& channel = "") {
    Submission submission = message_to(from, tag, channel);
    submission.operation = Operation::kReceive;
    return submit(to, std::move(submission), std::vector<std::uint8_t>(size));
  }
  // Submits a call that is invalid because of `call_error`.
  SubmittedCall& submit_invalid(int rank, Operation operation, int peer,
                                const std::string& call_error) {
    Submission submission = message_to(peer, 0, "");
    submission.operation = operation;
    submission.call_error = call_error;
    return submit(rank, std::move(submission), {});
  }
  SubmittedCall& submit(int rank, Submission submission, std::vector<std::uint8_t> memory) {
    SubmittedCall& message = *messages_.emplace_back(std::make_unique<SubmittedCall>());
    message.memory = std::move(memory);
    submission.name = "m" + std::to_string(messages_.size());
    submission.shape = {static_cast<std::int64_t>(message.memory.size())};
    submission.input = submission.output = message.memory.data();
    message.record.submission = std::move(submission);
    message.record.handle = messages_.size();
    mailbox(rank).submit(message.record, ranks_, finished_);
    mark_finished();
    return message;
  }
  bool advance(int rank) {
    const bool progressed = mailbox(rank).advance(finished_);
    mark_finished();
    return progressed;
  }
  void run() {
    for (bool progressed = true; progressed;) {
      progressed = false;
      for (const int rank : ranks_) progressed |= advance(rank);
    }
  }
  void end_peer(int rank, int peer, const std::string& reason) {
    mailbox(rank).end_peer(peer, Status::rebuild_group(reason), finished_);
    mark_finished();
  }
  std::size_t unfinished() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        messages_, [](const auto& message_in_flight) { return !message_in_flight->finished; }));
  }

 private:
  static Submission message_to(int peer, int tag, const std::string& channel) {
    Submission submission;
    submission.peer = peer;
    submission.tag = tag;
    submission.channel = channel;
    return submission;
  }
  void mark_finished() {
    for (const Record* const record : finished_) {
      SubmittedCall& message = *messages_[record->handle - 1];
      ASSERT_FALSE(message.finished) << "a call finishes once";
      message.finished = true;
    }
    finished_.clear();
  }

  int size_;
  std::vector<int> ranks_;
  std::vector<std::byte> bell_memory_{Doorbells::bytes_needed(size_) + kFlagLineBytes};
  std::vector<std::byte> ring_memory_{Mailbox::bytes_needed(size_) + kFlagLineBytes};
  std::vector<std::byte> flight_memory_{FlightRecorder::bytes_needed() + kFlagLineBytes};
  SystemClock clock_;
  FlightRecorder recorder_{aligned_address(flight_memory_)};
  std::vector<std::unique_ptr<Doorbells>> bells_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  std::vector<std::unique_ptr<SubmittedCall>> messages_;
  std::vector<Record*> finished_;
};

std::vector<std::uint8_t> random_bytes(unsigned seed, std::size_t size) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

TEST(MailboxTest, MessagesOfAnySizeArrive) {
  for (const std::size_t size : {0ul, 1ul, kInlineBytesMax, kInlineBytesMax + 1, 1'000'003ul}) {
    for (const bool receive_first : {false, true}) {
      Job job(2);
      const auto data = random_bytes(1, size);
      SubmittedCall* receive = receive_first ? &job.receive(1, 0, size) : nullptr;
      const SubmittedCall& send = job.send(0, 1, data);
      job.run();
      if (!receive_first) receive = &job.receive(1, 0, size);
      job.run();
      ASSERT_TRUE(send.finished && receive->finished) << size;
      EXPECT_TRUE(send.record.outcome.status.ok() && receive->record.outcome.status.ok());
      EXPECT_EQ(receive->memory, data);
      EXPECT_EQ(receive->record.outcome.source, 0);
    }
  }
}

TEST(MailboxTest, DifferentTagsChannelsAndGroupsDoNotMatch) {
  Job job(2);
  job.send(0, 1, {1}, 5, "a");
  job.send(0, 1, {2}, 6, "a");
  job.send(0, 1, {3}, 5, "b");
  EXPECT_EQ((job.run(), job.receive(1, 0, 1, 5, "b").memory[0]), 3);
  EXPECT_EQ(job.receive(1, 0, 1, 6, "a").memory[0], 2);
  EXPECT_EQ(job.receive(1, 0, 1, 5, "a").memory[0], 1);
}

TEST(MailboxTest, ALargeMessageDoesNotHoldUpOthers) {
  Job job(2);
  const SubmittedCall& large_send = job.send(0, 1, random_bytes(1, 500'000), 1);
  const SubmittedCall& small_send = job.send(0, 1, {7}, 2);
  const SubmittedCall& receive = job.receive(1, 0, 1, 2);
  job.run();
  EXPECT_TRUE(small_send.finished && receive.finished);
  EXPECT_FALSE(large_send.finished);
  const SubmittedCall& large_receive = job.receive(1, 0, 500'000, 1);
  job.run();
  EXPECT_TRUE(large_send.finished && large_receive.finished);
}

TEST(MailboxTest, AFewSmallSendsAreDoneEarly) {
  Job job(2);
  for (int i = 0; i < 100; ++i) job.send(0, 1, {static_cast<std::uint8_t>(i)});
  job.run();
  EXPECT_EQ(job.unfinished(), 36u);
  for (int i = 0; i < 100; ++i) {
    const SubmittedCall& receive = job.receive(1, 0, 1);
    EXPECT_EQ(receive.finished, i < 64) << "the receiver keeps 64 messages";
    job.run();
    EXPECT_TRUE(receive.finished);
    EXPECT_EQ(receive.memory[0], i);
  }
  job.run();
  EXPECT_EQ(job.unfinished(), 0u);
  for (int i = 0; i < 64; ++i) job.send(0, 1, {1});
  job.run();
  EXPECT_EQ(job.unfinished(), 0u) << "taken messages do not count";
}

TEST(MailboxTest, AnEarlySendIsDoneWhenItIsInTheRing) {
  Job job(2);
  for (int i = 0; i < 20; ++i) job.send(0, 1, random_bytes(1, kInlineBytesMax));
  while (job.advance(0)) continue;
  EXPECT_GT(job.unfinished(), 0u);
  EXPECT_TRUE(job.mailbox(0).has_unsent());
  EXPECT_TRUE(job.mailbox(0).is_moving_data());
  job.run();
  EXPECT_EQ(job.unfinished(), 0u);
  EXPECT_FALSE(job.mailbox(0).has_unsent());
}

TEST(MailboxTest, AReceiveFromAnyRankGetsTheOldestMessage) {
  Job job(3);
  job.send(2, 0, {2});
  job.advance(2);
  job.advance(0);
  job.send(1, 0, {1});
  job.run();
  const SubmittedCall& first_receive = job.receive(0, kAnyRank, 1);
  EXPECT_EQ(first_receive.record.outcome.source, 2);
  const SubmittedCall& second_receive = job.receive(0, kAnyRank, 1);
  EXPECT_EQ(second_receive.record.outcome.source, 1);
  const SubmittedCall& third_receive = job.receive(0, kAnyRank, 1);
  job.run();
  EXPECT_FALSE(third_receive.finished);
  job.send(1, 0, {9});
  job.run();
  EXPECT_EQ(third_receive.memory[0], 9);
}

TEST(MailboxTest, AMismatchIsAnErrorOfBothCalls) {
  Job job(2);
  const SubmittedCall& send = job.send(0, 1, random_bytes(1, 20'000));
  job.run();
  const SubmittedCall& receive = job.receive(1, 0, 30'000);
  job.run();
  const std::string text =
      "send `m1` of rank 0 has 20000 elements (uint8), but recv `m2` of rank 1 has 30000 (uint8); "
      "both must have the same dtype and number of elements";
  EXPECT_EQ(send.record.outcome.status, Status::fix_call(text));
  EXPECT_EQ(receive.record.outcome.status, Status::fix_call(text));
  EXPECT_EQ(job.unfinished(), 0u);
}

TEST(MailboxTest, AnInvalidCallIsAnErrorOfTheOtherRank) {
  for (const std::size_t size : {1ul, 20'000ul}) {
    Job job(2);
    job.submit_invalid(0, Operation::kSend, 1, "bad send");
    const SubmittedCall& receive = job.receive(1, 0, size);
    job.run();
    EXPECT_EQ(receive.record.outcome.status, Status::fix_call("bad send"));
    job.submit_invalid(1, Operation::kReceive, 0, "bad receive");
    const SubmittedCall& send = job.send(0, 1, random_bytes(1, size));
    job.run();
    const bool is_early = size <= kInlineBytesMax;
    EXPECT_EQ(send.record.outcome.status, is_early ? Status() : Status::fix_call("bad receive"));
    const SubmittedCall& later_receive = job.receive(1, 0, 1);
    job.send(0, 1, {4});
    job.run();
    EXPECT_EQ(later_receive.memory[0], 4);
    EXPECT_EQ(job.unfinished(), 0u);
  }
}

TEST(MailboxTest, TheEndOfAPeerEndsOnlyItsMessages) {
  Job job(3);
  const SubmittedCall& send = job.send(0, 1, random_bytes(1, 500'000));
  const SubmittedCall& receive = job.receive(0, 1, 1);
  const SubmittedCall& receive_from_2 = job.receive(0, 2, 1);
  const SubmittedCall& receive_from_any = job.receive(0, kAnyRank, 1, 3);
  job.run();
  job.end_peer(0, 1, "rank 1 is gone");
  for (const SubmittedCall* const message : {&send, &receive}) {
    EXPECT_EQ(message->record.outcome.status.code(), StatusCode::kRebuildGroup);
    EXPECT_THAT(message->record.outcome.status.message(), HasSubstr("cannot finish: rank 1"));
  }
  EXPECT_FALSE(receive_from_2.finished || receive_from_any.finished);
  const SubmittedCall& later_send = job.send(0, 1, {1});
  EXPECT_EQ(later_send.record.outcome.status.code(), StatusCode::kRebuildGroup);
  EXPECT_FALSE(job.mailbox(0).has_unsent());
  job.end_peer(0, 2, "rank 2 is gone");
  EXPECT_EQ(receive_from_2.record.outcome.status.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(receive_from_any.record.outcome.status.message(), HasSubstr("rank 2 is gone"));
  EXPECT_EQ(job.receive(0, kAnyRank, 1).record.outcome.status.code(), StatusCode::kRebuildGroup);
}

TEST(MailboxTest, AMessageThatArrivedBeforeTheEndCanBeReceived) {
  Job job(2);
  job.send(1, 0, {3});
  job.send(1, 0, random_bytes(1, 20'000), 4);
  job.run();
  job.end_peer(0, 1, "rank 1 is gone");
  EXPECT_EQ(job.receive(0, kAnyRank, 1).memory[0], 3);
  const SubmittedCall& large_receive = job.receive(0, 1, 20'000, 4);
  EXPECT_EQ(large_receive.record.outcome.status.code(), StatusCode::kRebuildGroup);
}

TEST(MailboxTest, APeerThatGoesOnAfterTheEndIsHarmless) {
  Job job(2);
  const SubmittedCall& send = job.send(1, 0, random_bytes(1, 500'000));
  const SubmittedCall& receive = job.receive(0, 1, 500'000);
  job.advance(1);
  job.advance(0);
  job.advance(1);
  job.end_peer(0, 1, "another rank has died");
  EXPECT_TRUE(receive.finished);
  job.send(1, 0, random_bytes(1, 20'000), 4);
  job.run();
  EXPECT_FALSE(job.mailbox(0).protocol_error());
  EXPECT_TRUE(send.finished) << "the data is in the ring, or was read";
  EXPECT_TRUE(job.receive(0, 1, 20'000, 4).finished);
}

TEST(MailboxTest, NothingStaysUnsentForAPeerThatIsGone) {
  Job job(2);
  for (int i = 0; i < 20; ++i) job.send(0, 1, random_bytes(1, kInlineBytesMax));
  while (job.advance(0)) continue;
  EXPECT_TRUE(job.mailbox(0).has_unsent());
  job.end_peer(0, 1, "rank 1 is gone");
  EXPECT_EQ(job.unfinished(), 0u);
  EXPECT_FALSE(job.mailbox(0).has_unsent());
}

// Rank 0 submits two sends of `bytes` bytes to rank 1, and two receives of the same size from rank
// 1. Then its mailbox reads the envelopes `from_rank_1`. Returns the protocol error that the
// mailbox reports.
Status protocol_error_after(const std::vector<Envelope>& from_rank_1, std::size_t bytes = 10'000) {
  std::vector<std::byte> bell_memory(Doorbells::bytes_needed(2) + kFlagLineBytes);
  std::vector<std::byte> ring_memory(Mailbox::bytes_needed(2) + kFlagLineBytes);
  std::vector<std::byte> flight_memory(FlightRecorder::bytes_needed() + kFlagLineBytes);
  Doorbells doorbells(aligned_address(bell_memory), 0, 2);
  FlightRecorder recorder(aligned_address(flight_memory));
  const SystemClock clock;
  Mailbox mailbox({.memory = aligned_address(ring_memory), .local_ranks = {0, 1}}, doorbells,
                  recorder, clock);
  std::vector<Record*> finished;
  std::vector<std::uint8_t> memory(bytes);
  std::array<Record, 4> records;
  for (std::size_t index = 0; index < records.size(); ++index) {
    Submission& submission = records[index].submission;
    submission.operation = index < 2 ? Operation::kSend : Operation::kReceive;
    submission.peer = 1;
    submission.shape = {static_cast<std::int64_t>(bytes)};
    submission.input = submission.output = memory.data();
    mailbox.submit(records[index], {0, 1}, finished);
  }
  auto* const counter = reinterpret_cast<MessageRing::Counter*>(aligned_address(ring_memory));
  std::byte* const from_1_to_0 =
      aligned_address(ring_memory) + 2 * sizeof(MessageRing::Counter) + MessageRing::bytes_needed();
  MessageRing ring(from_1_to_0, doorbells, 0, counter);
  for (const Envelope& envelope : from_rank_1) {
    Bytes envelope_bytes = encode(envelope);
    if (std::holds_alternative<DataHeader>(envelope)) envelope_bytes.push_back(std::byte{1});
    EXPECT_TRUE(ring.try_send(envelope_bytes));
  }
  EXPECT_TRUE(mailbox.advance(finished));
  if (!mailbox.protocol_error()) return {};
  EXPECT_FALSE(mailbox.advance(finished));
  return *mailbox.protocol_error();
}

TEST(MailboxTest, ABrokenProtocolIsReported) {
  const auto offer = [](std::uint64_t id) {
    Offer offer_with_id;
    offer_with_id.id = id;
    offer_with_id.bytes = 10'000;
    return offer_with_id;
  };
  const auto stop_status = [](const std::string& text) {
    return Status::stop("rank 1: " + text + ", a bug in Farandole");
  };
  EXPECT_EQ(
      protocol_error_after({Acceptance{2}, Refusal{1, ""}, offer(1), offer(2), DataHeader{2}}),
      Status());
  EXPECT_EQ(protocol_error_after({DataHeader{1}}),
            stop_status("sent 1 bytes of message 1, which has 0 left"));
  const Status needless_answer_error = stop_status("answered message 1, which needs no answer");
  EXPECT_EQ(protocol_error_after({Acceptance{1}, Acceptance{1}}), needless_answer_error);
  EXPECT_EQ(protocol_error_after({Acceptance{1}, Refusal{1, ""}}), needless_answer_error);
  EXPECT_EQ(protocol_error_after({Refusal{1, ""}, Acceptance{1}}), needless_answer_error);
  // These two sends are done before rank 1 answers their offers.
  EXPECT_EQ(protocol_error_after({Acceptance{1}, Refusal{2, ""}}, 1), Status());
  EXPECT_EQ(protocol_error_after({Acceptance{1}, Acceptance{2}, Acceptance{1}}, 1),
            needless_answer_error);
  EXPECT_EQ(protocol_error_after({offer(1), offer(1)}),
            stop_status("offered message 1 instead of message 2"));
}

// Random programs: every rank submits its sends and receives in its own order, while the mailboxes
// advance in any order. For each receiver, channel and tag, either all receives name their source,
// or all receive from any rank.
class RandomMessages : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomMessages, ::testing::Range(0u, 60u));

struct PlannedCall {
  int rank;
  Operation operation;
  int peer;
  int tag;
  std::string channel;
  std::size_t size;
  unsigned seed;
};
using MessageKey = std::tuple<int, int, int, std::string>;  // from, to, tag, channel

struct Plan {
  std::vector<std::vector<PlannedCall>> programs;          // by rank
  std::map<MessageKey, std::vector<unsigned>> sent_seeds;  // the seeds of the messages, in order
};

// Adds messages to one receiver with one tag and channel.
void add_messages(std::mt19937& random, int to, int tag, const std::string& channel, Plan& plan) {
  constexpr std::size_t kSizes[] = {0, 1, 100, kInlineBytesMax, kInlineBytesMax + 1, 150'000};
  const int size = static_cast<int>(plan.programs.size());
  const bool receives_from_any = random() % 2 == 0;
  const std::size_t message_size = kSizes[random() % std::size(kSizes)];
  for (unsigned count = random() % 8; count > 0; --count) {
    const int from = (to + 1 + static_cast<int>(random() % static_cast<unsigned>(size - 1))) % size;
    auto& seeds = plan.sent_seeds[{from, to, tag, channel}];
    seeds.push_back(static_cast<unsigned>(random()));
    plan.programs[static_cast<std::size_t>(from)].push_back(
        {from, Operation::kSend, to, tag, channel, message_size, seeds.back()});
    plan.programs[static_cast<std::size_t>(to)].push_back({to, Operation::kReceive,
                                                           receives_from_any ? kAnyRank : from, tag,
                                                           channel, message_size, 0});
  }
}

TEST_P(RandomMessages, ArriveInOrder) {
  std::mt19937 random(GetParam());
  const int size = 2 + static_cast<int>(random() % 5);
  Plan plan{.programs = std::vector<std::vector<PlannedCall>>(static_cast<std::size_t>(size)),
            .sent_seeds = {}};
  for (int to = 0; to < size; ++to)
    for (const int tag : {0, 1, 9})
      for (const char* const channel : {"", "x"}) add_messages(random, to, tag, channel, plan);
  auto& [programs, sent_seeds] = plan;
  // Shuffle each program, but keep the order of the sends with the same key.
  for (auto& program : programs) {
    std::ranges::shuffle(program, random);
    std::map<MessageKey, std::size_t> next_seed_index;
    for (PlannedCall& planned_call : program)
      if (planned_call.operation == Operation::kSend) {
        const MessageKey key{planned_call.rank, planned_call.peer, planned_call.tag,
                             planned_call.channel};
        planned_call.seed = sent_seeds[key][next_seed_index[key]++];
      }
  }
  Job job(size);
  std::vector<std::pair<PlannedCall, const SubmittedCall*>> receives;
  std::vector<std::size_t> next_call(programs.size());
  for (int step = 0; step < 3000; ++step) {
    const auto rank = random() % programs.size();
    if (random() % 3 > 0 || next_call[rank] == programs[rank].size()) {
      job.advance(static_cast<int>(rank));
      continue;
    }
    const PlannedCall& planned_call = programs[rank][next_call[rank]++];
    if (planned_call.operation == Operation::kSend)
      job.send(planned_call.rank, planned_call.peer,
               random_bytes(planned_call.seed, planned_call.size), planned_call.tag,
               planned_call.channel);
    else
      receives.emplace_back(planned_call,
                            &job.receive(planned_call.rank, planned_call.peer, planned_call.size,
                                         planned_call.tag, planned_call.channel));
  }
  job.run();
  ASSERT_EQ(job.unfinished(), 0u);
  std::map<MessageKey, std::size_t> next_seed_index;
  for (const auto& [planned_call, message] : receives) {
    ASSERT_TRUE(message->record.outcome.status.ok());
    const int source = message->record.outcome.source;
    const MessageKey key{source, planned_call.rank, planned_call.tag, planned_call.channel};
    ASSERT_TRUE(planned_call.peer == kAnyRank || planned_call.peer == source);
    ASSERT_LT(next_seed_index[key], sent_seeds[key].size());
    ASSERT_EQ(message->memory,
              random_bytes(sent_seeds[key][next_seed_index[key]++], planned_call.size));
  }
}

}  // namespace
}  // namespace farandole
