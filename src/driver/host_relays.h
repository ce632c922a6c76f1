// HostRelays: relays data between the program that has started the job and the launchers on the
// hosts. The data are the channels and the output of the workers, the reports of the launchers, and
// copies of the output for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/poller.h"
#include "driver/host_process.h"
#include "driver/launcher_order.h"
#include "launcher/caller_report.h"
#include "launcher/job_options.h"
#include "output/job_output.h"
#include "output/rank_files.h"

namespace farandole {

// Only one thread may use it. No function blocks.
class HostRelays {
 public:
  // `files` is either empty or has the files of all ranks. The poller reports `report_tag` when the
  // program that has started the job can read more of the report. The references must outlive this
  // object.
  HostRelays(const CallerDescriptors& caller, std::optional<RankFiles> files, Poller& poller,
             std::uint64_t report_tag, JobOutput& output)
      : caller_(caller),
        files_(std::move(files)),
        poller_(poller),
        output_(output),
        caller_report_(poller, report_tag, caller.report) {}

  // The parts that the launchers must relay. Empty if the driver only needs the output that the
  // launchers show.
  std::optional<RelayedParts> relayed_parts() const;
  // After this call, the launcher's standard input and output are two of the streams that are
  // relayed. No data are lost, because the launcher sends nothing between its greeting and its
  // order. The poller reports `tag` when the relay has something to do. Errors: kStop.
  Status begin_relay(HostProcess& process, std::uint64_t tag);
  // Call it when the poller reports the relay of the process. Returns whether everything is
  // written. If so, the poller does not report this relay again.
  bool serve(HostProcess& process);

  void report_writable() { caller_report_.sink_writable(); }
  bool report_is_written() const { return caller_report_.everything_is_written(); }

 private:
  void add_copies(const HostProcess& process, std::vector<RelayStream>& streams);
  void receive_report(HostProcess& process, std::string_view bytes);

  const CallerDescriptors& caller_;
  std::optional<RankFiles> files_;
  Poller& poller_;
  JobOutput& output_;
  CallerReport caller_report_;
  bool has_reported_cause_ = false;  // whether the report has named the first failed rank
};

}  // namespace farandole
