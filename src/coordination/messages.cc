#include "coordination/messages.h"

#include <fmt/format.h>

#include <bit>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace farandole {
namespace {

// The first byte of a message, and the first byte of each item.
enum class Kind : std::uint8_t { kAnnouncements = 1, kStream = 2 };
enum class Tag : std::uint8_t {
  kAnnounceInFull = 1,
  kAnnounceById = 2,
  kAnnounceAgain = 3,
  kAnnounceJoin = 4,
  kRaise = 5,
  kReport = 6,
  kDefine = 7,
  kForget = 8,
  kIssue = 9,
  kRefuse = 10,
  kReleaseAll = 11,
  kStop = 12,
  kAnswer = 13,
};

constexpr std::string_view name_of(Kind kind) {
  return kind == Kind::kAnnouncements ? "announcements" : "decisions";
}

void put_signature(ByteWriter& writer, const Signature& signature) {
  writer.put_text(signature.name);
  writer.put(signature.operation);
  writer.put(signature.dtype);
  writer.put(signature.device);
  writer.put(signature.reduce_op);
  writer.put(signature.root_rank);
  writer.put(std::bit_cast<std::uint64_t>(signature.prescale));
  writer.put(std::bit_cast<std::uint64_t>(signature.postscale));
  writer.put(static_cast<std::uint8_t>(signature.dimensions.size()));
  for (const auto dimension : signature.dimensions) writer.put(dimension);
}

Signature get_signature(ByteReader& reader) {
  Signature signature;
  signature.name = reader.get_text();
  signature.operation = reader.get<Operation>();
  signature.dtype = reader.get<DType>();
  signature.device = reader.get<DeviceType>();
  signature.reduce_op = reader.get<ReduceOp>();
  signature.root_rank = reader.get<std::int32_t>();
  signature.prescale = std::bit_cast<double>(reader.get<std::uint64_t>());
  signature.postscale = std::bit_cast<double>(reader.get<std::uint64_t>());
  const auto count = reader.get<std::uint8_t>();
  for (int index = 0; index < count; ++index)
    signature.dimensions.push_back(reader.get<std::int64_t>());
  return signature;
}

void put_moment(ByteWriter& writer, const Moment& moment) {
  writer.put(moment.waits);
  writer.put(moment.quiet_points);
  writer.put(moment.batch);
}

Moment get_moment(ByteReader& reader) {
  Moment moment;
  moment.waits = reader.get<std::uint32_t>();
  moment.quiet_points = reader.get<std::uint32_t>();
  moment.batch = reader.get<std::uint32_t>();
  return moment;
}

void put_list(ByteWriter& writer, const std::vector<std::uint32_t>& list) {
  CHECK(list.size() <= kListMax, "a list fits into a message");
  writer.put(static_cast<std::uint16_t>(list.size()));
  for (const auto number : list) writer.put(number);
}

std::vector<std::uint32_t> get_list(ByteReader& reader) {
  std::vector<std::uint32_t> list;
  const auto count = reader.get<std::uint16_t>();
  for (int index = 0; index < count && reader.ok(); ++index)
    list.push_back(reader.get<std::uint32_t>());
  return list;
}

struct Encoder {
  ByteWriter& writer;

  void operator()(const AnnounceInFull& item) {
    writer.put(Tag::kAnnounceInFull);
    put_signature(writer, item.signature);
    put_moment(writer, item.moment);
  }
  void operator()(const AnnounceById& item) {
    writer.put(Tag::kAnnounceById);
    writer.put(item.id);
    put_moment(writer, item.moment);
  }
  void operator()(const AnnounceAgain& item) {
    writer.put(Tag::kAnnounceAgain);
    put_signature(writer, item.signature);
    put_moment(writer, item.moment);
  }
  void operator()(const AnnounceJoin& /*item*/) { writer.put(Tag::kAnnounceJoin); }
  void operator()(const Raise& item) {
    writer.put(Tag::kRaise);
    writer.put(item.generation);
    writer.put(item.cause);
    writer.put(item.atom);
    writer.put(item.bucket);
    put_list(writer, item.ready);
  }
  void operator()(const Report& item) {
    writer.put(Tag::kReport);
    writer.put(item.generation);
    writer.put(item.completed);
    writer.put(item.entered);
    writer.put(item.identity);
  }
  void operator()(const Define& item) {
    writer.put(Tag::kDefine);
    writer.put(item.id);
    put_signature(writer, item.signature);
  }
  void operator()(const Forget& item) {
    writer.put(Tag::kForget);
    writer.put(item.id);
  }
  void operator()(const Issue& item) {
    writer.put(Tag::kIssue);
    writer.put(item.generation);
    writer.put(item.sequence);
    writer.put(item.id);
  }
  void operator()(const Refuse& item) {
    CHECK(item.name.size() <= kNameBytesMax && item.text.size() <= kRefusalTextBytesMax,
          "a refusal fits into a message");
    writer.put(Tag::kRefuse);
    writer.put(item.generation);
    writer.put(item.sequence);
    writer.put_text(item.name);
    writer.put_text(item.text);
  }
  void operator()(const ReleaseAll& item) {
    writer.put(Tag::kReleaseAll);
    writer.put(item.generation);
    writer.put(item.sequence);
    writer.put(item.last_rank);
  }
  void operator()(const Stop& item) {
    writer.put(Tag::kStop);
    writer.put(item.generation);
  }
  void operator()(const Answer& item) {
    writer.put(Tag::kAnswer);
    writer.put(item.generation);
    writer.put(item.prefix);
    writer.put(item.atom);
  }
};

template <class Item>
Bytes encode(const Item& item) {
  ByteWriter writer;
  std::visit(Encoder{writer}, item);
  return writer.take();
}

// What is wrong with an item whose bytes could be read; empty when nothing is.
struct Examiner {
  std::string operator()(const AnnounceInFull& item) const {
    return problem_of_call(item.signature);
  }
  std::string operator()(const AnnounceById& item) const { return problem_of_id(item.id); }
  std::string operator()(const AnnounceAgain& item) const {
    return problem_of_call(item.signature);
  }
  std::string operator()(const AnnounceJoin& /*item*/) const { return {}; }
  std::string operator()(const Raise& item) const {
    if (item.cause > Raise::Cause::kSuccession)
      return fmt::format("a raise has the cause {}", static_cast<int>(item.cause));
    if (item.ready.size() > kListMax)
      return fmt::format("a list has {} numbers", item.ready.size());
    return {};
  }
  std::string operator()(const Report& item) const {
    if (item.entered > 1) return fmt::format("a report has {} entries", item.entered);
    return {};
  }
  std::string operator()(const Define& item) const {
    auto problem = problem_of_id(item.id);
    return problem.empty() ? problem_of_call(item.signature) : problem;
  }
  std::string operator()(const Forget& item) const { return problem_of_id(item.id); }
  std::string operator()(const Issue& item) const { return problem_of_id(item.id); }
  std::string operator()(const Refuse& item) const {
    if (item.name.empty() || item.name.size() > kNameBytesMax)
      return fmt::format("a refusal has a name of {} bytes", item.name.size());
    if (item.text.empty() || item.text.size() > kRefusalTextBytesMax)
      return fmt::format("a refusal has a text of {} bytes", item.text.size());
    return {};
  }
  std::string operator()(const ReleaseAll& item) const {
    if (item.last_rank < 0) return fmt::format("a release names the rank {}", item.last_rank);
    return {};
  }
  std::string operator()(const Stop& /*item*/) const { return {}; }
  std::string operator()(const Answer& /*item*/) const { return {}; }

 private:
  // Of what is matched by its name; a join is not.
  static std::string problem_of_call(const Signature& signature) {
    auto problem = problem_of(signature);
    if (problem.empty() && signature.operation == Operation::kJoin)
      return fmt::format("the join `{}` comes with a signature", shortened(signature.name, 200));
    return problem;
  }
  static std::string problem_of_id(std::uint32_t id) {
    return id == 0 ? "an item has the id 0" : std::string();
  }
};

std::optional<Announcement> get_item(ByteReader& reader, Tag tag, const Announcement* /*type*/) {
  switch (tag) {
    case Tag::kAnnounceInFull: {
      auto signature = get_signature(reader);
      return AnnounceInFull{std::move(signature), get_moment(reader)};
    }
    case Tag::kAnnounceById: {
      const auto id = reader.get<std::uint32_t>();
      return AnnounceById{id, get_moment(reader)};
    }
    case Tag::kAnnounceAgain: {
      auto signature = get_signature(reader);
      return AnnounceAgain{std::move(signature), get_moment(reader)};
    }
    case Tag::kAnnounceJoin:
      return AnnounceJoin{};
    case Tag::kRaise: {
      Raise item{};
      item.generation = reader.get<std::uint32_t>();
      item.cause = reader.get<Raise::Cause>();
      item.atom = reader.get<std::uint32_t>();
      item.bucket = reader.get<std::uint32_t>();
      item.ready = get_list(reader);
      return item;
    }
    case Tag::kReport: {
      Report item{};
      item.generation = reader.get<std::uint32_t>();
      item.completed = reader.get<std::uint32_t>();
      item.entered = reader.get<std::uint8_t>();
      item.identity = reader.get<std::uint64_t>();
      return item;
    }
    default:
      return std::nullopt;
  }
}

std::optional<StreamItem> get_item(ByteReader& reader, Tag tag, const StreamItem* /*type*/) {
  switch (tag) {
    case Tag::kDefine: {
      const auto id = reader.get<std::uint32_t>();
      return Define{id, get_signature(reader)};
    }
    case Tag::kForget:
      return Forget{reader.get<std::uint32_t>()};
    case Tag::kIssue: {
      const auto generation = reader.get<std::uint32_t>();
      const auto sequence = reader.get<std::uint32_t>();
      return Issue{generation, sequence, reader.get<std::uint32_t>()};
    }
    case Tag::kRefuse: {
      const auto generation = reader.get<std::uint32_t>();
      const auto sequence = reader.get<std::uint32_t>();
      auto name = reader.get_text();
      return Refuse{generation, sequence, std::move(name), reader.get_text()};
    }
    case Tag::kReleaseAll: {
      const auto generation = reader.get<std::uint32_t>();
      const auto sequence = reader.get<std::uint32_t>();
      return ReleaseAll{generation, sequence, reader.get<std::int32_t>()};
    }
    case Tag::kStop:
      return Stop{reader.get<std::uint32_t>()};
    case Tag::kAnswer: {
      const auto generation = reader.get<std::uint32_t>();
      const auto prefix = reader.get<std::uint32_t>();
      return Answer{generation, prefix, reader.get<std::uint32_t>()};
    }
    default:
      return std::nullopt;
  }
}

template <class Item>
Result<std::vector<Item>> decode(Kind kind, std::span<const std::byte> message) {
  if (message.size() > kMessageBytesMax)
    return Status::stop(
        fmt::format("it has {} bytes, at most {} are allowed", message.size(), kMessageBytesMax));
  ByteReader reader(message);
  const auto found = reader.get<Kind>();
  if (!reader.ok()) return Status::stop("it is empty");
  if (found != kind)
    return Status::stop(fmt::format("its kind is {} where {} ({}) are expected",
                                    static_cast<int>(found), static_cast<int>(kind),
                                    name_of(kind)));
  if (reader.at_end()) return Status::stop("it holds no item");

  std::vector<Item> items;
  while (!reader.at_end()) {
    const auto tag = reader.get<Tag>();
    auto item = get_item(reader, tag, static_cast<const Item*>(nullptr));
    if (!item)
      return Status::stop(
          fmt::format("item {} has the unknown tag {}", items.size() + 1, static_cast<int>(tag)));
    if (!reader.ok())
      return Status::stop(
          fmt::format("item {} (tag {}) is cut off", items.size() + 1, static_cast<int>(tag)));
    if (const auto problem = std::visit(Examiner(), *item); !problem.empty())
      return Status::stop(
          fmt::format("item {} (tag {}): {}", items.size() + 1, static_cast<int>(tag), problem));
    items.push_back(*std::move(item));
  }
  return items;
}

}  // namespace

void MessagePacker::add(const Announcement& announcement) {
  append(static_cast<std::uint8_t>(Kind::kAnnouncements), encode(announcement));
}

void MessagePacker::add(const StreamItem& item) {
  append(static_cast<std::uint8_t>(Kind::kStream), encode(item));
}

void MessagePacker::append(std::uint8_t kind, Bytes item) {
  CHECK(item.size() < kMessageBytesMax, "an item fits into a message");
  if (!open_.empty() && open_.size() + item.size() > kMessageBytesMax)
    full_.push_back(std::exchange(open_, {}));
  if (open_.empty()) open_.push_back(std::byte{kind});
  open_.insert(open_.end(), item.begin(), item.end());
}

std::optional<Bytes> MessagePacker::take() {
  if (!full_.empty()) {
    auto message = std::move(full_.front());
    full_.pop_front();
    return message;
  }
  if (open_.empty()) return std::nullopt;
  return std::exchange(open_, {});
}

Result<std::vector<Announcement>> decode_announcements(std::span<const std::byte> message) {
  return decode<Announcement>(Kind::kAnnouncements, message);
}

Result<std::vector<StreamItem>> decode_stream(std::span<const std::byte> message) {
  return decode<StreamItem>(Kind::kStream, message);
}

}  // namespace farandole
