#include "control/messages.h"

#include <bit>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "control/limits.h"

namespace farandole {
namespace {

// The kind is the first byte of a message. Announcements and streams consist of items; each item
// begins with its tag, and the two kinds share no tag. An acknowledgement has no items.
enum class Kind : std::uint8_t { kAnnouncements = 1, kStream = 2, kAcknowledgement = 3 };

template <class Item>
constexpr std::size_t kFirstTag = 1;
template <>
constexpr std::size_t kFirstTag<StreamItem> = 1 + std::variant_size_v<Announcement>;

constexpr std::string_view name_of(Kind kind) {
  return kind == Kind::kAnnouncements ? "announcements" : "decisions";
}

class Writer {
 public:
  void operator()(const auto&... fields) { (put(fields), ...); }
  Bytes take() { return writer_.take(); }

 private:
  void put(Scalar auto value) { writer_.put(value); }
  void put(double value) { put(std::bit_cast<std::uint64_t>(value)); }
  void put(const std::string& text) { writer_.put_text(text); }
  void put(const std::vector<std::int64_t>& shape) {
    put(static_cast<std::uint8_t>(shape.size()));
    for (const auto dimension : shape) put(dimension);
  }
  void put(const std::vector<std::uint32_t>& list) {
    CHECK(list.size() <= kListLengthMax, "a list fits into a message");
    put(static_cast<std::uint16_t>(list.size()));
    for (const auto number : list) put(number);
  }

  ByteWriter writer_;
};

class Reader {
 public:
  explicit Reader(ByteReader& reader) : reader_(reader) {}

  void operator()(auto&... fields) { (get(fields), ...); }

 private:
  template <Scalar T>
  void get(T& value) {
    value = reader_.get<T>();
  }
  void get(double& value) { value = std::bit_cast<double>(reader_.get<std::uint64_t>()); }
  void get(std::string& text) { text = reader_.get_text(); }
  void get(std::vector<std::int64_t>& shape) { get_list(shape, reader_.get<std::uint8_t>()); }
  void get(std::vector<std::uint32_t>& list) { get_list(list, reader_.get<std::uint16_t>()); }
  template <Scalar T>
  void get_list(std::vector<T>& list, int count) {
    for (; count > 0 && reader_.ok(); --count) list.push_back(reader_.get<T>());
  }

  ByteReader& reader_;
};

// These functions visit the fields of each item, in the order in which they are written and read.
void visit(auto& visitor, Signature& item) {
  visitor(item.name, item.operation, item.dtype, item.device, item.reduce_op, item.root_rank,
          item.prescale, item.postscale, item.dimensions, item.call_error);
}
void visit(auto& visitor, SubmissionContext& item) {
  visitor(item.waits, item.quiescent_points, item.batch, item.unnamed_number);
}
void visit(auto& visitor, AnnounceInFull& item) {
  visit(visitor, item.signature);
  visit(visitor, item.context);
}
void visit(auto& visitor, AnnounceById& item) {
  visitor(item.id);
  visit(visitor, item.context);
}
void visit(auto& visitor, AnnounceAgain& item) {
  visit(visitor, item.signature);
  visit(visitor, item.context);
}
void visit(auto& visitor, AnnounceJoin& item) { visitor(item.calls); }
void visit(auto& visitor, Raise& item) {
  visitor(item.generation, item.completed, item.cause, item.fragment, item.bucket, item.ready,
          item.edge_kind);
}
void visit(auto& visitor, Report& item) {
  visitor(item.generation, item.completed, item.entered, item.identity, item.quiescent_points,
          item.fragments_run);
}
void visit(auto& visitor, Define& item) {
  visitor(item.id);
  visit(visitor, item.signature);
}
void visit(auto& visitor, Forget& item) { visitor(item.id); }
void visit(auto& visitor, Issue& item) { visitor(item.generation, item.sequence, item.id); }
void visit(auto& visitor, Reject& item) {
  visitor(item.generation, item.sequence, item.name, item.text);
}
void visit(auto& visitor, ReleaseAll& item) {
  visitor(item.generation, item.sequence, item.last_rank);
}
void visit(auto& visitor, Stop& item) { visitor(item.generation); }
void visit(auto& visitor, Answer& item) {
  visitor(item.generation, item.common_prefix, item.fragment);
}
void visit(auto& visitor, AddBucket& item) { visitor(item.fragment, item.ids); }
void visit(auto& visitor, DropFragment& item) { visitor(item.fragment); }
void visit(auto& visitor, AddEdge& item) { visitor(item.from, item.to, item.kind); }
void visit(auto& visitor, Follow& item) { visitor(item.generation, item.sequence, item.fragment); }

template <class Item>
Bytes encode(Item item) {
  Writer writer;
  writer(static_cast<std::uint8_t>(kFirstTag<Item> + item.index()));
  std::visit([&writer](auto& alternative) { visit(writer, alternative); }, item);
  return writer.take();
}

// Returns what is wrong with an item that was read completely, or an empty text if the item is
// valid.
struct ItemValidator {
  std::string operator()(const auto& /*item*/) const { return {}; }
  std::string operator()(const AnnounceInFull& item) const {
    return problem_of_call(item.signature);
  }
  std::string operator()(const AnnounceById& item) const { return problem_of_id(item.id); }
  std::string operator()(const AnnounceAgain& item) const {
    return problem_of_call(item.signature);
  }
  std::string operator()(const Raise& item) const {
    if (item.cause > Raise::Cause::kMissingEdge)
      return format_text("a raise has the cause {}", static_cast<int>(item.cause));
    auto problem = problem_of_list(item.ready);
    return problem.empty() ? problem_of_edge_kind(item.edge_kind) : problem;
  }
  std::string operator()(const Report& item) const {
    if (item.entered > 1) return format_text("a report has the entered flag {}", item.entered);
    return {};
  }
  std::string operator()(const Define& item) const {
    auto problem = problem_of_id(item.id);
    return problem.empty() ? problem_of_call(item.signature) : problem;
  }
  std::string operator()(const Forget& item) const { return problem_of_id(item.id); }
  std::string operator()(const Issue& item) const { return problem_of_id(item.id); }
  std::string operator()(const Reject& item) const {
    if (item.name.empty() || item.name.size() > kNameBytesMax)
      return format_text("a rejection has a name of {} bytes", item.name.size());
    if (item.text.empty() || item.text.size() > kRejectionTextBytesMax)
      return format_text("a rejection has a text of {} bytes", item.text.size());
    return {};
  }
  std::string operator()(const ReleaseAll& item) const {
    if (item.last_rank < 0) return format_text("a release names the rank {}", item.last_rank);
    return {};
  }
  std::string operator()(const AddBucket& item) const {
    if (item.fragment == 0) return "a bucket is in the fragment 0";
    return item.ids.empty() ? "a bucket is empty" : problem_of_list(item.ids);
  }
  std::string operator()(const AddEdge& item) const { return problem_of_edge_kind(item.kind); }

 private:
  // Members announce a join by AnnounceJoin, so the signature of a join is an error here.
  static std::string problem_of_call(const Signature& signature) {
    auto problem = problem_of(signature);
    if (problem.empty() && signature.operation == Operation::kJoin)
      return format_text("the join `{}` comes with a signature",
                         shortened(signature.name, kNameShownBytesMax));
    return problem;
  }
  static std::string problem_of_list(const std::vector<std::uint32_t>& list) {
    return list.size() > kListLengthMax ? format_text("a list has {} numbers", list.size())
                                        : std::string();
  }
  static std::string problem_of_edge_kind(EdgeKind kind) {
    if (kind >= EdgeKind::kSameSuperstep && kind <= EdgeKind::kBoth) return {};
    return format_text("an edge has the kind {}", static_cast<int>(kind));
  }
  static std::string problem_of_id(std::uint32_t id) {
    return id == 0 ? "an item has the id 0" : std::string();
  }
};

// Reads the item that has this tag; empty if the tag is unknown.
template <class Item, std::size_t... Index>
std::optional<Item> read_item(ByteReader& bytes, std::size_t tag,
                              std::index_sequence<Index...> /*all*/) {
  std::optional<Item> item;
  const auto set_alternative = [&]<class Alternative>(std::size_t alternative_tag,
                                                      Alternative empty) {
    if (tag == alternative_tag) item = std::move(empty);
  };
  (set_alternative(kFirstTag<Item> + Index, std::variant_alternative_t<Index, Item>{}), ...);
  Reader reader(bytes);
  if (item) std::visit([&reader](auto& alternative) { visit(reader, alternative); }, *item);
  return item;
}

Status check_kind(Kind kind, std::span<const std::byte> message, ByteReader& reader) {
  if (message.size() > kMessageBytesMax)
    return Status::stop(
        format_text("it has {} bytes, at most {} are allowed", message.size(), kMessageBytesMax));
  const auto found_kind = reader.get<Kind>();
  if (!reader.ok()) return Status::stop("it is empty");
  if (found_kind == kind) return {};
  return Status::stop(format_text("its kind is {} where {} ({}) are expected",
                                  static_cast<int>(found_kind), static_cast<int>(kind),
                                  name_of(kind)));
}

template <class Item>
Result<std::vector<Item>> decode_items(ByteReader& reader) {
  if (reader.at_end()) return Status::stop("it contains no item");
  std::vector<Item> items;
  while (!reader.at_end()) {
    const int tag = reader.get<std::uint8_t>();
    auto item = read_item<Item>(reader, static_cast<std::size_t>(tag),
                                std::make_index_sequence<std::variant_size_v<Item>>());
    if (!item)
      return Status::stop(format_text("item {} has the unknown tag {}", items.size() + 1, tag));
    if (!reader.ok())
      return Status::stop(format_text("item {} (tag {}) is cut off", items.size() + 1, tag));
    if (const auto problem = std::visit(ItemValidator(), *item); !problem.empty())
      return Status::stop(format_text("item {} (tag {}): {}", items.size() + 1, tag, problem));
    items.push_back(*std::move(item));
  }
  return items;
}

}  // namespace

void MessagePacker::add(const MemberSet& from, const Announcement& announcement) {
  ByteWriter head;
  head.put(Kind::kAnnouncements);
  from.write(head);
  append(head.take(), encode(announcement));
}

void MessagePacker::add(const StreamItem& item) {
  append({static_cast<std::byte>(Kind::kStream)}, encode(item));
}

void MessagePacker::append(const Bytes& head, const Bytes& item) {
  CHECK(head.size() + item.size() <= kMessageBytesMax, "an item fits into a message");
  if (!open_message_.empty() &&
      (head != open_head_ || open_message_.size() + item.size() > kMessageBytesMax))
    full_messages_.push_back(std::exchange(open_message_, {}));
  if (open_message_.empty()) open_message_ = open_head_ = head;
  open_message_.insert(open_message_.end(), item.begin(), item.end());
}

std::optional<Bytes> MessagePacker::take() {
  if (!full_messages_.empty()) {
    auto message = std::move(full_messages_.front());
    full_messages_.pop_front();
    return message;
  }
  if (open_message_.empty()) return std::nullopt;
  return std::exchange(open_message_, {});
}

Result<Announcements> decode_announcements(std::span<const std::byte> message) {
  ByteReader reader(message);
  FARANDOLE_TRY(check_kind(Kind::kAnnouncements, message, reader));
  auto from = MemberSet::read(reader);
  if (!reader.ok() || from.empty()) return Status::stop("it does not say whose it is");
  FARANDOLE_TRY_ASSIGN(auto items, decode_items<Announcement>(reader));
  return Announcements{std::move(from), std::move(items)};
}

Result<std::vector<StreamItem>> decode_stream(std::span<const std::byte> message) {
  ByteReader reader(message);
  FARANDOLE_TRY(check_kind(Kind::kStream, message, reader));
  return decode_items<StreamItem>(reader);
}

Bytes acknowledgement() { return {static_cast<std::byte>(Kind::kAcknowledgement)}; }

bool is_acknowledgement(std::span<const std::byte> message) {
  return message.size() == 1 && message.front() == static_cast<std::byte>(Kind::kAcknowledgement);
}

}  // namespace farandole
