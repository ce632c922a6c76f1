// Worker report: what the launcher of one host tells the launcher of another host about a worker,
// as bytes. The clocks of two hosts differ, so a report has the ages of events instead of their
// times, in milliseconds.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/clock.h"
#include "diagnosis/job_snapshot.h"

namespace farandole {

// The largest number of bytes in a report.
inline constexpr std::size_t kWorkerReportBytesMax = 64'500;

// The report has all calls in flight and the last finished calls, but no traceback. A pure
// function; `now` is the time at which the launcher read the worker's record.
Bytes encode_worker(const WatchedWorker& worker, TimePoint now);

// Returns the worker as if this host had read its record at `now`. Empty if the bytes are not a
// report. A pure function.
std::optional<WatchedWorker> decode_worker(std::span<const std::byte> bytes, TimePoint now);

}  // namespace farandole
