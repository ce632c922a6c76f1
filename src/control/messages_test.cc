#include "control/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace farandole {
namespace {

Signature sample_signature() {
  Signature signature;
  signature.name = "grad/ä";
  signature.operation = Operation::kAllreduce;
  signature.dtype = DType::kBFloat16;
  signature.device = DeviceType::kCuda;
  signature.reduce_op = ReduceOp::kMax;
  signature.root_rank = 3;
  signature.prescale = -0.0;
  signature.postscale = 1.0 / 3;
  signature.dimensions = {std::int64_t{1} << 60, 0};
  signature.call_error = "`x` got none";
  return signature;
}

std::vector<Announcement> all_announcements() {
  return {AnnounceInFull{sample_signature(), {1, 2, 3}},
          AnnounceById{0xFFFFFFFF, {4, 5, 6}},
          AnnounceAgain{sample_signature(), {7, 8, 9}},
          AnnounceJoin{},
          Raise{2, 3, Raise::Cause::kBucket, 7, 1, {5, 6}, EdgeKind::kSameSuperstep},
          Report{2, 9, 1, 0x123456789abcdef0, 5, 4}};
}

std::vector<StreamItem> all_stream_items() {
  return {Define{4, sample_signature()}, Forget{3}, Issue{1, 9, 4},  Reject{1, 10, "x", "because"},
          ReleaseAll{1, 11, 7},          Stop{1},   Answer{2, 11, 0}};
}

template <class Item>
Bytes pack_all(const std::vector<Item>& items) {
  MessagePacker packer;
  for (const auto& item : items) {
    if constexpr (std::is_same_v<Item, Announcement>)
      packer.add(MemberSet(3), item);
    else
      packer.add(item);
  }
  auto message = packer.take();
  EXPECT_TRUE(message.has_value());
  EXPECT_FALSE(packer.take().has_value());
  return message.value_or(Bytes());
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Messages, DecodingReturnsTheEncodedItems) {
  EXPECT_EQ(decode_announcements(pack_all(all_announcements())).value(),
            (Announcements{MemberSet(3), all_announcements()}));
  EXPECT_EQ(decode_stream(pack_all(all_stream_items())).value(), all_stream_items());
}

// A message names the members that made its announcements, so announcements of other members begin
// a new message.
TEST(Messages, AMessageHasTheAnnouncementsOfOneSetOfMembers) {
  MemberSet both_members(3);
  both_members.insert(200);
  MessagePacker packer;
  packer.add(both_members, AnnounceById{1, {}});
  packer.add(both_members, AnnounceById{2, {}});
  packer.add(MemberSet(3), AnnounceById{3, {}});
  EXPECT_EQ(decode_announcements(*packer.take()).value(),
            (Announcements{both_members, {AnnounceById{1, {}}, AnnounceById{2, {}}}}));
  EXPECT_EQ(decode_announcements(*packer.take()).value(),
            (Announcements{MemberSet(3), {AnnounceById{3, {}}}}));
  EXPECT_FALSE(packer.take().has_value());
}

TEST(Messages, AnnouncementsWithoutAMemberAreRejected) {
  for (const auto& bytes : {bytes_of({1}), bytes_of({1, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0}),
                            bytes_of({1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1})})
    EXPECT_EQ(decode_announcements(bytes).status(), Status::stop("it does not say whose it is"));
}

TEST(Messages, OtherMessagesAreNotAcknowledgements) {
  EXPECT_TRUE(is_acknowledgement(acknowledgement()));
  EXPECT_FALSE(is_acknowledgement(bytes_of({})));
  EXPECT_FALSE(is_acknowledgement(bytes_of({3, 0})));
  EXPECT_FALSE(is_acknowledgement(bytes_of({2})));
}

TEST(Messages, TheLargestItemsFit) {
  auto largest_signature = sample_signature();
  largest_signature.name = std::string(kNameBytesMax, 'n');
  largest_signature.dimensions = std::vector<std::int64_t>(kDimensionsMax, 1);
  const std::vector<StreamItem> items = {
      Define{1, largest_signature},
      Reject{1, 2, std::string(kNameBytesMax, 'n'), std::string(kRejectionTextBytesMax, 't')}};
  for (const auto& item : items) {
    const auto message = pack_all(std::vector<StreamItem>{item});
    EXPECT_LE(message.size(), kMessageBytesMax);
    EXPECT_EQ(decode_stream(message).value(), std::vector<StreamItem>{item});
  }
}

TEST(Messages, ManyItemsBecomeSeveralMessagesInOrder) {
  MessagePacker packer;
  for (std::uint32_t sequence = 1; sequence <= 10000; ++sequence)
    packer.add(StreamItem(Issue{1, sequence, 5}));
  std::uint32_t expected = 0;
  int messages = 0;
  for (auto message = packer.take(); message; message = packer.take(), ++messages) {
    EXPECT_LE(message->size(), kMessageBytesMax);
    const auto items = decode_stream(*message);
    ASSERT_TRUE(items.ok());
    for (const auto& item : *items) EXPECT_EQ(std::get<Issue>(item).sequence, ++expected);
  }
  EXPECT_EQ(expected, 10000U);
  EXPECT_EQ(messages, 8);  // 130,000 bytes, at most 16,384 in each message
}

TEST(Messages, ScalesKeepTheirBits) {
  auto signature = sample_signature();
  signature.prescale = -0.0;
  signature.postscale = std::nextafter(1.0, 2);
  const std::vector<StreamItem> items = {Define{1, signature}};
  EXPECT_EQ(decode_stream(pack_all(items)).value(), items);
}

template <class Item>
Bytes pack_one(const Item& item) {
  return pack_all(std::vector<StreamItem>{item});
}

TEST(Messages, ErrorsSayWhatIsWrong) {
  const std::pair<Bytes, std::string> cases[] = {
      {{}, "it is empty"},
      {bytes_of({2}), "it contains no item"},
      {pack_all(all_announcements()), "its kind is 1 where 2 (decisions) are expected"},
      {bytes_of({2, 99, 0, 0, 0, 0}), "item 1 has the unknown tag 99"},
      {bytes_of({2, 1, 0, 0, 0, 0}), "item 1 has the unknown tag 1"},
      {bytes_of({2, 8, 1, 0, 0}), "item 1 (tag 8) is cut off"},
      {bytes_of({2, 8, 1, 0, 0, 0, 8, 0, 0, 0, 0}), "item 2 (tag 8): an item has the id 0"},
      {Bytes(kMessageBytesMax + 1, std::byte{2}), "it has 16385 bytes, at most 16384 are allowed"},
      // The length of this name is greater than the message.
      {bytes_of({2, 10, 1, 0, 0, 0, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 'x'}),
       "item 1 (tag 10) is cut off"},
      {pack_one(Define{0, sample_signature()}), "item 1 (tag 7): an item has the id 0"},
      {pack_one(Issue{1, 1, 0}), "item 1 (tag 9): an item has the id 0"},
      {pack_one(Reject{1, 1, "", "why"}), "item 1 (tag 10): a rejection has a name of 0 bytes"},
      {pack_one(Reject{1, 1, "x", ""}), "item 1 (tag 10): a rejection has a text of 0 bytes"},
      {pack_one(AddBucket{0, {1}}), "item 1 (tag 14): a bucket is in the fragment 0"},
      {pack_one(AddBucket{1, {}}), "item 1 (tag 14): a bucket is empty"},
      {pack_one(AddEdge{1, 1, static_cast<EdgeKind>(0)}),
       "item 1 (tag 16): an edge has the kind 0"},
      {pack_one(ReleaseAll{1, 1, -3}), "item 1 (tag 11): a release names the rank -3"},
  };
  for (const auto& [bytes, text] : cases)
    EXPECT_EQ(decode_stream(bytes).status(), Status::stop(text));

  EXPECT_EQ(decode_announcements(pack_all(all_stream_items())).status(),
            Status::stop("its kind is 2 where 1 (announcements) are expected"));
  const std::pair<Announcement, std::string> announcements[] = {
      {AnnounceById{0, {}}, "item 1 (tag 2): an item has the id 0"},
      {Raise{1, 0, static_cast<Raise::Cause>(3), 0, 0, {}},
       "item 1 (tag 5): a raise has the cause 3"},
      {Report{1, 1, 2, 0, 0, 0}, "item 1 (tag 6): a report has the entered flag 2"},
  };
  for (const auto& [item, text] : announcements) {
    const auto bytes = pack_all(std::vector<Announcement>{item});
    EXPECT_EQ(decode_announcements(bytes).status(), Status::stop(text));
  }
  auto message_with_long_list = pack_all(std::vector<Announcement>{AnnounceJoin{}});
  message_with_long_list.resize(message_with_long_list.size() - 1 - sizeof(AnnounceJoin::calls));
  for (const auto byte :
       bytes_of({5, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x04}))
    message_with_long_list.push_back(byte);
  message_with_long_list.resize(message_with_long_list.size() + 4 * 1025 + 1);
  EXPECT_EQ(decode_announcements(message_with_long_list).status(),
            Status::stop("item 1 (tag 5): a list has 1025 numbers"));
}

TEST(Messages, AnInvalidSignatureIsRejected) {
  auto signature = sample_signature();
  signature.dtype = static_cast<DType>(77);
  auto infinite_signature = sample_signature();
  infinite_signature.postscale = std::numeric_limits<double>::infinity();
  auto join_signature = Signature{.name = "x", .operation = Operation::kJoin, .dimensions = {}};
  const std::pair<Signature, std::string> cases[] = {
      {signature, "`grad/ä`: this number is not an element type (77)"},
      {infinite_signature, "allreduce `grad/ä`: the postscale is inf; it must be finite"},
      {join_signature, "the join `x` comes with a signature"},
  };
  for (const auto& [wrong_signature, text] : cases) {
    EXPECT_EQ(decode_announcements(
                  pack_all(std::vector<Announcement>{AnnounceInFull{wrong_signature, {}}}))
                  .status(),
              Status::stop("item 1 (tag 1): " + text));
    EXPECT_EQ(decode_announcements(
                  pack_all(std::vector<Announcement>{AnnounceAgain{wrong_signature, {}}}))
                  .status(),
              Status::stop("item 1 (tag 3): " + text));
    EXPECT_EQ(decode_stream(pack_one(Define{1, wrong_signature})).status(),
              Status::stop("item 1 (tag 7): " + text));
  }
}

TEST(Messages, ACutMessageHasWholeItemsOrIsAnError) {
  const auto bytes = pack_all(all_stream_items());
  int complete_prefixes = 0;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto items = decode_stream(std::span(bytes).first(size));
    if (items.ok()) {
      ++complete_prefixes;
      const auto all_items = all_stream_items();
      EXPECT_TRUE(std::equal(items->begin(), items->end(), all_items.begin()));
    }
  }
  EXPECT_EQ(complete_prefixes, static_cast<int>(all_stream_items().size()) - 1);
}

// The sanitizers check that the decoders read damaged bytes safely. If a decoder accepts a message,
// packing its result must give the same bytes.
TEST(Messages, DamagedBytesAreDecodedSafely) {
  std::mt19937_64 random(1);
  const auto announcements = pack_all(all_announcements());
  const auto stream = pack_all(all_stream_items());
  for (int round = 0; round < 20000; ++round) {
    auto bytes = round % 2 == 0 ? announcements : stream;
    for (auto damage = random() % 4; damage > 0; --damage)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.resize(bytes.size() - random() % 3);
    const auto decoded_announcements = decode_announcements(bytes);
    if (decoded_announcements.ok()) {
      MessagePacker packer;
      for (const auto& item : decoded_announcements->items)
        packer.add(decoded_announcements->from, item);
      EXPECT_EQ(packer.take(), bytes);
    }
    const auto decoded_items = decode_stream(bytes);
    if (decoded_items.ok()) {
      EXPECT_EQ(pack_all(decoded_items.value()), bytes);
    }
  }
}

}  // namespace
}  // namespace farandole
