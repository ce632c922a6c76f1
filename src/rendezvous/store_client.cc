#include "rendezvous/store_client.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <utility>

#include "base/descriptor_limit.h"
#include "base/try.h"
#include "rendezvous/waiting.h"

namespace farandole {
namespace {

// The time limit for the owner's answer. The owner answers within microseconds unless it is stopped
// or the machine is overloaded.
constexpr auto kAnswerLimit = std::chrono::seconds(60);
// How many values fit into one reply if each value has two descriptors.
constexpr std::size_t kKeysPerRequest = kUnixMessageDescriptorsMax / 2;
// How many keys fit into one request if each key has the maximum length.
constexpr std::ptrdiff_t kKeysPerRemoval = 256;

constexpr const char* kLauncherText = "the launcher of this job (`farandole run`)";
constexpr const char* kServingRankText = "the rank that keeps the rendezvous of this job";

// Whether a reply with `descriptor_count` descriptors can answer a wait for `key_count` keys.
bool answers_wait(const StoreReply& reply, std::size_t descriptor_count, std::size_t key_count,
                  const std::string& end_key) {
  std::size_t descriptors_needed = 0;
  for (const auto& value : reply.values) {
    if (!value && end_key.empty()) return false;
    if (value) descriptors_needed += value->descriptors;
  }
  return descriptors_needed == descriptor_count && !reply.values.empty() &&
         reply.values.size() <= key_count;
}

}  // namespace

Status StoreClient::explained_error(const Status& failure) const {
  if (failure.code() == StatusCode::kRebuildGroup)
    return Status::stop(owner_ + " has ended or has closed the connection to this worker" +
                        (channel_->passes_descriptors() ? "" : " (" + failure.message() + ")") +
                        "; the job is over");
  if (failure.code() == StatusCode::kRetry)
    return Status::stop(owner_ + " has not answered for " + std::to_string(kAnswerLimit.count()) +
                        " s; is it stopped (state T in `ps`)?");
  return failure;
}

Status StoreClient::malformed_message_error() const {
  return Status::stop(owner_ +
                      " sent a malformed message; does it run the same version of Farandole?");
}

WaitLimit StoreClient::answer_limit() const {
  return {std::chrono::steady_clock::now() + kAnswerLimit, never_interrupted_};
}

Result<std::unique_ptr<StoreClient>> StoreClient::connect(int borrowed_descriptor) {
  const std::string variable = "FARANDOLE_RENDEZVOUS_DESCRIPTOR";
  if (borrowed_descriptor < 0)
    return Status::fix_call(variable +
                            " is not set, so this worker cannot find the others; start it with "
                            "`farandole run -n N …`");
  if (const Status check_status = UnixSocket::check(borrowed_descriptor); !check_status.ok())
    return Status::fix_call(
        variable + "=" + std::to_string(borrowed_descriptor) +
        " should be this worker's socket to its launcher, but " + check_status.message() +
        ". A wrapper between `farandole run` and this program may close inherited descriptors "
        "(Python's subprocess does unless close_fds=False), or the variable is left over from "
        "another job");
  Descriptor duplicate(::fcntl(borrowed_descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!duplicate.valid() || ::fcntl(borrowed_descriptor, F_SETFD, FD_CLOEXEC) != 0)
    return Status::stop("cannot duplicate the socket to the launcher: " + descriptor_advice());
  FARANDOLE_TRY_ASSIGN(auto socket, UnixSocket::adopt(std::move(duplicate)));
  return std::make_unique<StoreClient>(std::make_unique<UnixChannel>(std::move(socket)),
                                       kLauncherText);
}

std::unique_ptr<StoreClient> StoreClient::from_socket(UnixSocket socket) {
  return std::make_unique<StoreClient>(std::make_unique<UnixChannel>(std::move(socket)),
                                       kServingRankText);
}

StoreClient::StoreClient(std::unique_ptr<StoreChannel> channel, std::string owner)
    : channel_(std::move(channel)), owner_(std::move(owner)) {
  // Request numbers start at the current time. So a late reply to an earlier client of this socket
  // never has the number of a request of this client.
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  inbox_.lock()->next_number = static_cast<std::uint64_t>(now.count());
}

Status StoreClient::share(const std::string& key, LocalValue value) {
  return share(key, std::move(value), answer_limit());
}

Status StoreClient::share(const std::string& key, LocalValue value, const WaitLimit& limit) {
  if (value.bytes.size() > kStoreValueBytesMax || value.descriptors.size() > kStoreDescriptorsMax ||
      key.size() > kStoreKeyBytesMax)
    return Status::fix_call(
        "the rendezvous key `" + key.substr(0, 32) + "` (" + std::to_string(key.size()) +
        " bytes) with a value of " + std::to_string(value.bytes.size()) + " bytes and " +
        std::to_string(value.descriptors.size()) + " descriptors is over the limits");
  StoreRequest request{.kind = StoreRequestKind::kSet,
                       .keys = {key},
                       .end_key = {},
                       .value = std::move(value.bytes)};
  FARANDOLE_TRY_ASSIGN(const Answer answer,
                       send_and_await(std::move(request), value.descriptors, limit));
  return answer.reply.status;
}

Result<LocalValues> StoreClient::receive_all(const std::vector<std::string>& keys,
                                             const std::string& end_key, const WaitLimit& limit) {
  LocalValues values;
  while (values.size() < keys.size()) {
    const auto next_key = keys.begin() + static_cast<std::ptrdiff_t>(values.size());
    const std::size_t count = std::min(keys.size() - values.size(), kKeysPerRequest);
    StoreRequest request{.kind = StoreRequestKind::kWait,
                         .keys = {next_key, next_key + static_cast<std::ptrdiff_t>(count)},
                         .end_key = end_key,
                         .value = {}};
    FARANDOLE_TRY_ASSIGN(Answer answer, send_and_await(std::move(request), {}, limit));
    FARANDOLE_TRY(answer.reply.status);
    if (!answers_wait(answer.reply, answer.descriptors.size(), count, end_key))
      return malformed_message_error();
    auto descriptor = std::make_move_iterator(answer.descriptors.begin());
    for (auto& value : answer.reply.values) {
      auto& local_value = values.emplace_back();
      if (!value) continue;
      local_value =
          LocalValue{std::move(value->bytes), {descriptor, descriptor + value->descriptors}};
      descriptor += value->descriptors;
    }
  }
  return values;
}

Result<std::int64_t> StoreClient::add(const std::string& key, std::int64_t delta) {
  StoreRequest request{
      .kind = StoreRequestKind::kAdd, .keys = {key}, .end_key = {}, .delta = delta, .value = {}};
  FARANDOLE_TRY_ASSIGN(const Answer answer, send_and_await(std::move(request), {}, answer_limit()));
  FARANDOLE_TRY(answer.reply.status);
  return answer.reply.sum;
}

Result<TimePoint> StoreClient::clock() {
  StoreRequest request{
      .kind = StoreRequestKind::kClock, .keys = {"clock"}, .end_key = {}, .value = {}};
  FARANDOLE_TRY_ASSIGN(const Answer answer, send_and_await(std::move(request), {}, answer_limit()));
  FARANDOLE_TRY(answer.reply.status);
  return TimePoint(std::chrono::nanoseconds(answer.reply.sum));
}

Status StoreClient::remove_all(const std::vector<std::string>& keys) {
  for (auto batch_begin = keys.begin(); batch_begin != keys.end();) {
    const auto batch_end = batch_begin + std::min(keys.end() - batch_begin, kKeysPerRemoval);
    FARANDOLE_TRY(remove_in_one_request({batch_begin, batch_end}, answer_limit()));
    batch_begin = batch_end;
  }
  return {};
}

Status StoreClient::remove_in_one_request(std::vector<std::string> keys, const WaitLimit& limit) {
  StoreRequest request{
      .kind = StoreRequestKind::kRemove, .keys = std::move(keys), .end_key = {}, .value = {}};
  FARANDOLE_TRY_ASSIGN(const Answer answer, send_and_await(std::move(request), {}, limit));
  return answer.reply.status;
}

Status StoreClient::replace(const std::string& key, Bytes value, const WaitLimit& limit) {
  FARANDOLE_TRY(remove_in_one_request({key}, limit));
  return share(key, {std::move(value), {}}, limit);
}

Status StoreClient::send(const StoreRequest& request, const std::vector<Descriptor>& descriptors) {
  std::vector<int> descriptor_numbers;
  for (const auto& descriptor : descriptors) descriptor_numbers.push_back(descriptor.get());
  const TimePoint deadline = std::chrono::steady_clock::now() + kAnswerLimit;
  const Status send_status = channel_->send(request.encode(), descriptor_numbers, deadline);
  return send_status.ok() ? send_status : explained_error(send_status);
}

Result<StoreClient::Answer> StoreClient::send_and_await(StoreRequest request,
                                                        const std::vector<Descriptor>& descriptors,
                                                        const WaitLimit& limit) {
  {
    auto inbox = inbox_.lock();
    FARANDOLE_TRY(inbox->connection_status);
    request.number = inbox->next_number++;
    inbox->awaited_answers.emplace(request.number, std::nullopt);
  }
  try {
    const Status send_status = send(request, descriptors);
    Result<Answer> answer =
        send_status.ok() ? await_answer(request, limit) : Result<Answer>(send_status);
    inbox_.lock()->awaited_answers.erase(request.number);
    return answer;
  } catch (const std::bad_alloc&) {
    inbox_.lock()->awaited_answers.erase(request.number);
    throw;
  }
}

Result<StoreClient::Answer> StoreClient::await_answer(const StoreRequest& request,
                                                      const WaitLimit& limit) {
  Status limit_status;
  while (limit_status.ok()) {
    auto answer = await_answer_until(request.number, next_slice_end(limit));
    if (answer.ok() || answer.status().code() != StatusCode::kRetry) return answer;
    limit_status = check_limit(request.keys, limit);
  }
  const bool is_in_time = std::chrono::steady_clock::now() < limit.deadline;
  if (request.kind != StoreRequestKind::kWait)
    return is_in_time ? limit_status : explained_error(limit_status);
  // The wait must end, but the value may already be on its way. If the value is not on its way, the
  // cancel makes the server answer the wait with kRetry.
  StoreRequest cancel{StoreRequestKind::kCancel, request.number, {request.keys.front()}, {}, 0, {}};
  FARANDOLE_TRY(send(cancel, {}));
  const WaitLimit reply_limit = answer_limit();
  while (std::chrono::steady_clock::now() < reply_limit.deadline) {
    auto answer = await_answer_until(request.number, next_slice_end(reply_limit));
    if (answer.ok() && answer->reply.status.code() == StatusCode::kRetry) return limit_status;
    if (answer.ok() || answer.status().code() != StatusCode::kRetry) return answer;
  }
  return explained_error(limit_status);
}

Result<StoreClient::Answer> StoreClient::await_answer_until(std::uint64_t number,
                                                            TimePoint deadline) {
  for (;;) {
    {
      auto inbox = inbox_.lock();
      inbox.wait_until(deadline, [&](const Inbox& state) {
        return state.awaited_answers.at(number) || !state.connection_status.ok() ||
               !state.is_being_read;
      });
      if (auto& answer = inbox->awaited_answers.at(number)) return *std::move(answer);
      FARANDOLE_TRY(inbox->connection_status);
      if (inbox->is_being_read) return Status::retry("no answer yet");
      inbox->is_being_read = true;
    }
    read_one_message(deadline);
    if (std::chrono::steady_clock::now() < deadline) continue;
    const bool is_answered = inbox_.lock()->awaited_answers.at(number).has_value();
    if (!is_answered) return Status::retry("no answer yet");
  }
}

void StoreClient::read_one_message(TimePoint deadline) {
  try {
    auto message = channel_->receive(deadline);
    if (message.ok()) return deliver(*std::move(message));
    const bool has_ended = message.status().code() != StatusCode::kRetry;
    stop_reading(has_ended ? explained_error(message.status()) : Status());
  } catch (const std::bad_alloc&) {
    stop_reading({});  // this thread has received nothing; another thread may read now
    throw;
  }
}

void StoreClient::deliver(UnixMessage message) {
  std::optional<StoreReply> reply;
  try {
    reply = StoreReply::decode(message.bytes);
  } catch (const std::bad_alloc&) {
    return stop_reading(Status::stop("there is no memory left for a message of " + owner_));
  }
  if (!reply) return stop_reading(malformed_message_error());
  // Only the call that waits for this reply fails, because other threads still need the connection.
  if (!message.descriptor_status.ok()) reply->status = std::move(message.descriptor_status);
  {
    auto inbox = inbox_.lock();
    const auto awaited_answer = inbox->awaited_answers.find(reply->number);
    if (awaited_answer != inbox->awaited_answers.end())
      awaited_answer->second = Answer{*std::move(reply), std::move(message.descriptors)};
  }
  stop_reading({});
}

void StoreClient::stop_reading(Status connection_status) {
  {
    auto inbox = inbox_.lock();
    inbox->is_being_read = false;
    if (!connection_status.ok()) inbox->connection_status = std::move(connection_status);
  }
  inbox_.notify_all();
}

}  // namespace farandole
