// JobOptions: the options of a job, from the command line.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "membership/membership.h"
#include "nodes/node_layout.h"
#include "nodes/node_options.h"
#include "output/output_options.h"
#include "workers/core_binding.h"
#include "workers/framework_ports.h"

namespace farandole {

// Descriptors from the caller, which is the program that started the job. With them, the caller can
// follow the job and communicate with the workers. All are borrowed and close-on-exec; the caller
// has the other ends.
struct CallerDescriptors {
  int pidfd = -1;   // a pidfd of the caller; the job ends with the caller; −1: none
  int report = -1;  // a pipe to which CallerReport writes; −1: none
  int door = -1;    // a socket for open_channel(); −1: there are no channels
  // For each local rank: a descriptor that the worker inherits; empty: none.
  std::vector<int> channels;
  std::vector<int> streams;  // two per rank: standard output and error; empty: we show this output
  std::vector<int> copies;   // two per rank: pipes that get an unchanged copy of what we show
};

// Where the launcher reads the job's secret.
struct SecretSource {
  std::string path;  // the path of a file with the secret
  // A descriptor of memory that begins with the 32 bytes of the secret. It is borrowed. −1: the
  // launcher reads the file instead.
  int descriptor = -1;
};

struct JobOptions {
  int workers = 1;                   // the workers on this node; 0: see NodeOptions
  std::vector<std::string> command;  // the program and its arguments
  // Environment variables that every worker gets. They override inherited variables.
  std::vector<std::pair<std::string, std::string>> variables;
  // How much freed memory a worker may keep for new tensors; 0: as the C library does by default.
  std::size_t kept_bytes = 0;
  BindTo bind_to = BindTo::kNone;  // which cores each worker may use
  FrameworkFlags frameworks;       // --tf-config and --jax
  // How long workers may take to end after they received a signal.
  std::chrono::seconds grace{30};
  OutputOptions output;
  // How long a call may wait for other ranks before the launcher prints a warning; 0: no warnings.
  std::chrono::seconds stall_warning{10};
  std::string timeline_path;  // the timeline of this node's workers; empty: none
  std::size_t timeline_bytes = 0;
  CallerDescriptors caller;
  std::optional<Membership::Options> elastic;  // empty: the number of workers is fixed
  // This launcher's part in a job over several hosts; empty if the job is on this host only.
  std::optional<NodeOptions> nodes;
  // Whether a driver (src/driver) has started this launcher. Then each byte of our standard input
  // is a signal to pass on, and the end of the input means that the driver is gone. We write the
  // lines of driver_lines.h to our standard output. If the job fails, only node 0 shows the reason.
  bool has_driver = false;
  // Whether the job ends when the parent process of this launcher ends. A scheduler may end a job
  // by killing this parent.
  bool ends_with_parent = false;
  SecretSource secret;  // the job's secret; used only if there are several hosts
};

}  // namespace farandole
