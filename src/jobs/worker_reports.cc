#include "jobs/worker_reports.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "base/try.h"
#include "diagnosis/worker_report.h"

namespace farandole {
namespace {

constexpr std::size_t kWords = (kWorkerReportBytesMax + 7) / sizeof(std::uint64_t);

// Works like a seqlock: the version is odd while the slot is written, and the reader loads the
// version before and after the other fields. The other fields are stored with release and loaded
// with acquire, so a reader that sees a new field also sees the odd version.
struct Slot {
  std::atomic<std::uint32_t> version;  // 0: never written
  std::atomic<std::uint32_t> bytes;
  std::atomic<std::int64_t> received_at;  // in nanoseconds of the monotonic clock
  std::array<std::atomic<std::uint64_t>, kWords> words;
};

}  // namespace

Result<std::unique_ptr<WorkerReports>> WorkerReports::create(int size) {
  FARANDOLE_TRY_ASSIGN(
      auto segment,
      Segment::create(kWorkerReportsName, static_cast<std::size_t>(size) * sizeof(Slot)));
  return std::unique_ptr<WorkerReports>(new WorkerReports(std::move(segment), size));
}

void WorkerReports::store(int rank, std::span<const std::byte> report, TimePoint now) {
  if (rank < 0 || rank >= size_ || report.size() > kWorkerReportBytesMax) return;
  Slot& slot = reinterpret_cast<Slot*>(segment_->data())[rank];
  const std::uint32_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  slot.bytes.store(static_cast<std::uint32_t>(report.size()), std::memory_order_release);
  slot.received_at.store(nanoseconds_of(now), std::memory_order_release);
  for (std::size_t begin = 0; begin < report.size(); begin += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, report.data() + begin, std::min(sizeof(word), report.size() - begin));
    slot.words[begin / sizeof(word)].store(word, std::memory_order_release);
  }
  slot.version.store(version + 2, std::memory_order_release);
}

std::optional<WatchedWorker> read_worker_report(std::span<const std::byte> memory, int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= memory.size() / sizeof(Slot))
    return std::nullopt;
  const Slot& slot = reinterpret_cast<const Slot*>(memory.data())[rank];
  const std::uint32_t version = slot.version.load(std::memory_order_acquire);
  if (version == 0 || version % 2 != 0) return std::nullopt;
  const std::size_t bytes =
      std::min<std::size_t>(slot.bytes.load(std::memory_order_acquire), kWorkerReportBytesMax);
  const TimePoint received_at{
      std::chrono::nanoseconds(slot.received_at.load(std::memory_order_acquire))};
  Bytes report(bytes);
  for (std::size_t begin = 0; begin < bytes; begin += sizeof(std::uint64_t)) {
    const std::uint64_t word = slot.words[begin / sizeof(word)].load(std::memory_order_acquire);
    std::memcpy(report.data() + begin, &word, std::min(sizeof(word), bytes - begin));
  }
  if (slot.version.load(std::memory_order_relaxed) != version) return std::nullopt;
  return decode_worker(report, received_at);
}

}  // namespace farandole
