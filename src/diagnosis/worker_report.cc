#include "diagnosis/worker_report.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace farandole {
namespace {

constexpr std::size_t kFinishedCallsMax = 8;
constexpr std::size_t kHostBytesMax = 256;
constexpr std::size_t kTextBytesMax = 512;
constexpr std::size_t kGroupsMax = 64;
constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

// One list of fields serves both directions: `visit` reads or writes each field.
void visit_fields(auto& visit, auto& call)
  requires std::is_same_v<std::remove_cvref_t<decltype(call)>, RecordedCall>
{
  visit.number(call.handle), visit.number(call.group), visit.number(call.peer);
  visit.number(call.elements), visit.number(call.name_hash),
      visit.text(call.name, kFlightNameBytes);
  visit.choice(call.operation, kOperationRows.size()), visit.choice(call.dtype, kDTypes.size());
  visit.choice(call.state, static_cast<std::size_t>(CallState::kFailed) + 1);
  visit.time(call.submitted), visit.time(call.changed);
}

void visit_fields(auto& visit, auto& worker)
  requires std::is_same_v<std::remove_cvref_t<decltype(worker)>, WatchedWorker>
{
  auto& report = worker.report;
  visit.text(worker.host, kHostBytesMax), visit.number(worker.pid);
  visit.text(worker.end, kTextBytesMax), visit.number(worker.stop_signal);
  visit.text(worker.cores, kTextBytesMax);
  visit.choice(report.member_state, static_cast<std::size_t>(MemberState::kLeft) + 1);
  visit.choice(report.cause, static_cast<std::size_t>(LeaveCause::kGroupLost) + 1);
  visit.time(report.since), visit.optional_number(report.blamed_rank);
  visit.text(report.reason, kTextBytesMax), visit.list(report.groups, kGroupsMax);
  visit.list(report.calls, kFlightCalls);
  visit.number(report.counts.calls), visit.number(report.counts.bytes);
  visit.duration(report.counts.blocked), visit.number(report.wait.handle);
  visit.time(report.wait.since), visit.optional_time(report.wait.until);
}

void visit_fields(auto& visit, auto& group)
  requires std::is_same_v<std::remove_cvref_t<decltype(group)>, GroupId>
{
  visit.number(group);
}

class FieldWriter {
 public:
  explicit FieldWriter(TimePoint now) : now_(now) {}

  void number(auto value) { writer_.put(value); }
  void choice(auto value, std::size_t /*count*/) { writer_.put(value); }
  void text(std::string_view text, std::size_t bytes_max) {
    writer_.put_text(text.substr(0, bytes_max));
  }
  void time(TimePoint time) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now_ - time).count();
    const bool is_known = time != TimePoint();
    writer_.put(is_known ? static_cast<std::uint32_t>(std::clamp<std::int64_t>(age, 0, kNever - 1))
                         : kNever);
  }
  void duration(Duration time) { writer_.put(static_cast<std::int64_t>(time.count())); }
  void optional_number(const std::optional<int>& value) {
    writer_.put(static_cast<std::uint8_t>(value ? 1 : 0));
    writer_.put(value.value_or(0));
  }
  void optional_time(const std::optional<TimePoint>& value) { time(value.value_or(TimePoint())); }
  template <class Item>
  void list(const std::vector<Item>& items, std::size_t items_max) {
    const std::size_t count = std::min(items.size(), items_max);
    writer_.put(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) visit_fields(*this, items[i]);
  }
  Bytes take() { return writer_.take(); }

 private:
  ByteWriter writer_;
  TimePoint now_;
};

class FieldReader {
 public:
  FieldReader(std::span<const std::byte> bytes, TimePoint now) : reader_(bytes), now_(now) {}

  template <class Number>
  void number(Number& value) {
    value = reader_.get<Number>();
  }
  template <class Choice>
  void choice(Choice& value, std::size_t count) {
    value = reader_.get<Choice>();
    is_valid_ = is_valid_ && static_cast<std::size_t>(value) < count;
  }
  void text(std::string& text, std::size_t bytes_max) {
    text = reader_.get_text();
    is_valid_ = is_valid_ && text.size() <= bytes_max;
  }
  void time(TimePoint& time) {
    const auto age = reader_.get<std::uint32_t>();
    time = age == kNever ? TimePoint() : now_ - std::chrono::milliseconds(age);
  }
  void duration(Duration& time) {
    const auto count = reader_.get<std::int64_t>();
    is_valid_ = is_valid_ && count >= 0 && count < std::numeric_limits<std::int64_t>::max() / 4;
    time = Duration(count);
  }
  void optional_number(std::optional<int>& value) {
    const bool is_known = reader_.get<std::uint8_t>() != 0;
    const int number = reader_.get<int>();
    value = is_known ? std::optional(number) : std::nullopt;
  }
  void optional_time(std::optional<TimePoint>& value) {
    TimePoint read;
    time(read);
    value = read != TimePoint() ? std::optional(read) : std::nullopt;
  }
  template <class Item>
  void list(std::vector<Item>& items, std::size_t items_max) {
    const auto count = reader_.get<std::uint32_t>();
    is_valid_ = is_valid_ && count <= items_max;
    for (std::uint32_t i = 0; i < count && ok(); ++i) visit_fields(*this, items.emplace_back());
  }
  bool ok() const { return reader_.ok() && is_valid_; }
  bool at_end() const { return reader_.at_end(); }

 private:
  ByteReader reader_;
  TimePoint now_;
  bool is_valid_ = true;
};

// Keeps all calls in flight, and the last finished calls.
std::vector<RecordedCall> important_calls(const std::vector<RecordedCall>& calls) {
  std::vector<const RecordedCall*> finished_calls;
  for (const RecordedCall& call : calls)
    if (!call.in_flight()) finished_calls.push_back(&call);
  const std::size_t kept_count = std::min(finished_calls.size(), kFinishedCallsMax);
  std::ranges::partial_sort(finished_calls,
                            finished_calls.begin() + static_cast<std::ptrdiff_t>(kept_count),
                            std::ranges::greater(), &RecordedCall::changed);
  finished_calls.resize(kept_count);
  std::vector<RecordedCall> kept_calls;
  for (const RecordedCall& call : calls)
    if (call.in_flight() || std::ranges::find(finished_calls, &call) != finished_calls.end())
      kept_calls.push_back(call);
  return kept_calls;
}

}  // namespace

Bytes encode_worker(const WatchedWorker& worker, TimePoint now) {
  WatchedWorker reported = worker;
  reported.report.calls = important_calls(worker.report.calls);
  FieldWriter writer(now);
  visit_fields(writer, std::as_const(reported));
  return writer.take();
}

std::optional<WatchedWorker> decode_worker(std::span<const std::byte> bytes, TimePoint now) {
  FieldReader reader(bytes, now);
  WatchedWorker worker;
  visit_fields(reader, worker);
  if (!reader.ok() || !reader.at_end()) return std::nullopt;
  return worker;
}

}  // namespace farandole
