#include "launcher/stack_capture.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "base/sibling_program.h"
#include "base/try.h"
#include "diagnosis/stack_text.h"
#include "output/worker_stream.h"
#include "workers/worker_environment.h"

namespace farandole {
namespace {

constexpr auto kCaptureTimeMax = std::chrono::seconds(5);
constexpr std::size_t kTextBytesMax = 256 * 1024;

}  // namespace

std::string find_py_spy() {
  const char* path = std::getenv("PATH");
  if (path != nullptr && !check_program("py-spy", path)) return "py-spy";
  return find_sibling_program("py-spy");
}

StackCapture::StackCapture(Poller& poller, std::uint64_t tag, const OriginalProcessState& state)
    : poller_(poller), tag_(tag), original_state_(state), program_(find_py_spy()) {}

void StackCapture::request(const CapturedWorker& worker) {
  queue_.push_back(worker);
  if (!running_capture_) start_next();
}

// Errors are ignored, because the report of a stall is useful without the stack, too.
void StackCapture::start_next() {
  while (!running_capture_ && !queue_.empty()) {
    const CapturedWorker worker = queue_.front();
    queue_.pop_front();
    (void)start(worker);
  }
}

Status StackCapture::start(const CapturedWorker& worker) {
  FARANDOLE_TRY_ASSIGN(WorkerStream stream, WorkerStream::make_pipe());
  // With --nonblocking, py-spy does not stop the worker while it reads the worker's memory.
  const std::vector<std::string> command{program_, "dump", "--nonblocking", "--pid",
                                         std::to_string(worker.pid)};
  const auto environment = merge_environment({inherited_environment()});
  FARANDOLE_TRY_ASSIGN(StartedProcess process,
                       start_process({.command = command,
                                      .environment = environment,
                                      .inherited = {},
                                      .standard_output = stream.theirs.get(),
                                      .standard_error = stream.theirs.get(),
                                      .original_state = original_state_}));
  if (!poller_.add(stream.ours.get(), Poller::Interest::kReading, tag_))
    ::syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
  running_capture_ = RunningCapture{worker,
                                    std::move(process.pidfd),
                                    std::move(stream.ours),
                                    {},
                                    std::chrono::steady_clock::now() + kCaptureTimeMax};
  return {};
}

std::optional<StackCapture::CapturedStack> StackCapture::advance(TimePoint now) {
  if (!running_capture_) return std::nullopt;
  const StreamRead read = read_available(running_capture_->output);
  running_capture_->text += read.bytes;
  const bool timed_out =
      now >= running_capture_->deadline || running_capture_->text.size() > kTextBytesMax;
  if (!read.ended && !timed_out) return std::nullopt;
  CapturedStack stack{
      .worker = running_capture_->worker,
      .lines = main_thread_frames(running_capture_->text, running_capture_->worker.pid),
      .failure = last_line_of(running_capture_->text)};
  if (stack.failure.empty()) stack.failure = "it gave no stack";
  end_running_capture();
  start_next();
  return stack;
}

std::optional<TimePoint> StackCapture::deadline() const {
  return running_capture_ ? std::optional(running_capture_->deadline) : std::nullopt;
}

void StackCapture::end_running_capture() {
  if (!running_capture_) return;
  poller_.remove(running_capture_->output.get());
  ::syscall(SYS_pidfd_send_signal, running_capture_->process.get(), SIGKILL, nullptr, 0);
  running_capture_.reset();
}

void StackCapture::stop() {
  queue_.clear();
  end_running_capture();
}

}  // namespace farandole
