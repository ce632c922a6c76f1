// JobNodes: this launcher's part in a job over several nodes. It has the job's secret, the link to
// the other launchers, and the addresses by which the workers of this node find the workers of the
// other nodes.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"
#include "launcher/job_options.h"
#include "network/tcp/tls_session.h"
#include "nodes/node_layout.h"
#include "nodes/node_link.h"
#include "workers/framework_variables.h"
#include "workers/worker_environment.h"

namespace farandole {

// Only one thread may use it.
class JobNodes {
 public:
  // Reads the secret and begins to connect to the other nodes. NodeLink::advance() then makes the
  // connections. Call it in the process that keeps the object, because forked children do not get
  // the secret. Errors: kFixCall if the file cannot be the secret; kStop.
  static Result<std::unique_ptr<JobNodes>> begin_to_join(const NodeOptions& options,
                                                         const SecretSource& source, TimePoint now);

  NodeLink& link() { return *link_; }
  const NodeLink& link() const { return *link_; }

  // Call these when all nodes have joined (NodeLink::start_message()).
  NodeLayout layout() const;
  RendezvousAddresses rendezvous_addresses() const;
  FrameworkAddresses framework_addresses() const;
  // A descriptor that one worker inherits. Errors: kStop.
  Result<Descriptor> secret_for_worker() const;

 private:
  JobNodes(const NodeOptions& options, Descriptor secret, std::unique_ptr<TlsContext> context)
      : options_(options), secret_(std::move(secret)), context_(std::move(context)) {}

  NodeOptions options_;
  Descriptor secret_;  // sealed memory
  std::unique_ptr<TlsContext> context_;
  std::unique_ptr<NodeLink> link_;  // borrows context_
};

}  // namespace farandole
