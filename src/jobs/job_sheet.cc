#include "jobs/job_sheet.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "base/try.h"
#include "nodes/node_layout.h"
#include "timeline/flight_record.h"

namespace farandole {
namespace {

// "farandol" in ASCII.
constexpr std::uint64_t kMagic = 0x6661'7261'6e64'6f6c;
// Increased by every change of the job sheet's format or of the flight record's format.
constexpr std::uint32_t kFormatVersion = 4;

// The state of a worker. One word holds both the state and the signal or exit code, so a reader
// never sees one of them without the other.
enum class WorkerState : std::uint32_t { kRuns, kStopped, kExited, kKilled };

struct Entry {
  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t> record_descriptor;
  // a WorkerState in the low half; the signal or the exit code in the high half
  std::atomic<std::uint64_t> state;
};

struct FixedText {
  std::uint32_t bytes;
  std::array<char, 508> characters;

  void write(std::string_view text) {
    bytes = static_cast<std::uint32_t>(std::min(text.size(), characters.size()));
    std::memcpy(characters.data(), text.data(), bytes);
  }
  std::string read() const {
    return {characters.data(), std::min<std::size_t>(bytes, characters.size())};
  }
};

// Written once. The magic number is written last, so a reader that sees the magic number can read
// the other fields.
struct Header {
  std::atomic<std::uint64_t> magic;
  std::uint32_t format;
  std::uint32_t record_bytes;
  std::int32_t workers;
  std::int32_t size;
  std::int32_t first_rank;
  std::int32_t foreground;
  std::int32_t agent;
  std::int64_t started;
  FixedText host;
  FixedText command;
};

std::size_t bytes_for(int workers) {
  return sizeof(Header) + static_cast<std::size_t>(workers) * sizeof(Entry);
}

Entry& entry_of(const Segment& segment, int local_rank) {
  auto* const entries = reinterpret_cast<Entry*>(segment.data() + sizeof(Header));
  return entries[local_rank];
}

void store_state(Entry& entry, WorkerState state, int number) {
  entry.state.store(static_cast<std::uint64_t>(state) | static_cast<std::uint64_t>(number) << 32U,
                    std::memory_order_release);
}

SheetWorker read_entry(const Entry& entry) {
  SheetWorker worker{.pid = entry.pid.load(std::memory_order_acquire),
                     .record_descriptor = entry.record_descriptor.load(std::memory_order_relaxed),
                     .end = {}};
  const std::uint64_t word = entry.state.load(std::memory_order_acquire);
  const auto number = static_cast<int>(word >> 32U);
  switch (static_cast<WorkerState>(word & 0xFFFFFFFFU)) {
    case WorkerState::kStopped:
      worker.stop_signal = number;
      break;
    case WorkerState::kExited:
      worker.end = ProcessEnd{.code = number};
      break;
    case WorkerState::kKilled:
      worker.end = ProcessEnd{.signal = number};
      break;
    case WorkerState::kRuns:
      break;
  }
  return worker;
}

}  // namespace

Result<std::unique_ptr<JobSheet>> JobSheet::create(const SheetJob& job, int workers) {
  FARANDOLE_TRY_ASSIGN(auto segment, Segment::create(kJobSheetName, bytes_for(workers)));
  auto& header = *reinterpret_cast<Header*>(segment->data());
  header.format = kFormatVersion;
  header.record_bytes = static_cast<std::uint32_t>(FlightRecorder::bytes_needed());
  header.workers = workers;
  header.size = job.size;
  header.first_rank = job.first_rank;
  header.foreground = job.foreground;
  header.agent = job.agent;
  header.started = job.started.time_since_epoch().count();
  header.host.write(job.host);
  header.command.write(job.command);
  header.magic.store(kMagic, std::memory_order_release);
  return std::unique_ptr<JobSheet>(new JobSheet(std::move(segment)));
}

void JobSheet::worker_started(int local_rank, pid_t pid, int record_descriptor) {
  Entry& entry = entry_of(*segment_, local_rank);
  store_state(entry, WorkerState::kRuns, 0);  // an earlier worker of this slot may have ended
  entry.record_descriptor.store(record_descriptor, std::memory_order_relaxed);
  entry.pid.store(pid, std::memory_order_release);
}

void JobSheet::worker_stopped(int local_rank, int signal) {
  store_state(entry_of(*segment_, local_rank), WorkerState::kStopped, signal);
}

void JobSheet::worker_continued(int local_rank) {
  store_state(entry_of(*segment_, local_rank), WorkerState::kRuns, 0);
}

void JobSheet::worker_ended(int local_rank, const ProcessEnd& end) {
  const bool killed = end.signal != 0;
  store_state(entry_of(*segment_, local_rank), killed ? WorkerState::kKilled : WorkerState::kExited,
              killed ? end.signal : end.code);
}

std::optional<SheetJob> read_job_sheet(const std::byte* memory, std::size_t bytes) {
  if (bytes < sizeof(Header)) return std::nullopt;
  const auto& header = *reinterpret_cast<const Header*>(memory);
  if (header.magic.load(std::memory_order_acquire) != kMagic || header.format != kFormatVersion ||
      header.record_bytes != FlightRecorder::bytes_needed())
    return std::nullopt;
  const std::int32_t workers = header.workers;
  if (workers < 0 || header.size < std::max(1, workers) || header.size > kWorkersMax ||
      bytes < bytes_for(workers))
    return std::nullopt;
  SheetJob job{.foreground = header.foreground,
               .agent = header.agent,
               .started = TimePoint(Duration(std::max<std::int64_t>(header.started, 0))),
               .host = header.host.read(),
               .command = header.command.read(),
               .size = header.size,
               .first_rank = std::clamp<std::int32_t>(header.first_rank, 0, header.size - workers),
               .workers = {}};
  const std::span entries(reinterpret_cast<const Entry*>(memory + sizeof(Header)),
                          static_cast<std::size_t>(workers));
  for (const Entry& entry : entries) job.workers.push_back(read_entry(entry));
  return job;
}

}  // namespace farandole
