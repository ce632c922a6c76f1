// Jobs on several hosts, for tests, in one process: every rank is a thread. The ranks of a host
// share a LocalStore, and all ranks share the job's Store. Ranks on different hosts reach each
// other over sealed connections on the loopback interface.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/assemble.h"
#include "engine/job_in_test.h"
#include "network/tcp/job_secret.h"
#include "network/tcp/tls_session.h"
#include "rendezvous/memory_store.h"

namespace farandole {

using HostOfRank = std::vector<int>;  // by rank

// Returns "On0011" for {0, 0, 1, 1}, for example.
inline std::string hosts_name(const HostOfRank& hosts) {
  std::string text = "On";
  for (const int host : hosts) text += std::to_string(host);
  return text;
}

class JobOnHosts {
 public:
  explicit JobOnHosts(HostOfRank hosts) : hosts_(std::move(hosts)) {
    local_stores_.resize(static_cast<std::size_t>(*std::ranges::max_element(hosts_)) + 1);
    for (auto& store : local_stores_) store = std::make_shared<MemoryStore>();
    auto secret = JobSecret::generate();
    EXPECT_TRUE(secret.ok());
    auto context = TlsContext::make(*std::move(secret));
    EXPECT_TRUE(context.ok());
    context_ = *std::move(context);
  }

  int size() const { return static_cast<int>(hosts_.size()); }
  EngineOptions options(int rank, const std::vector<std::vector<int>>& groups = {}) const {
    EngineOptions options = options_of(rank, size(), groups);
    options.topology.local_rank = -1;
    options.topology.local_size = -1;
    return options;
  }
  Result<std::unique_ptr<Engine>> join(const EngineOptions& options) const {
    return assemble(options, stores_of(options), network());
  }
  // The engine publishes stall reports in `reports`, as if another launcher had started the job.
  Result<std::unique_ptr<Engine>> join_and_report(EngineOptions options,
                                                  std::shared_ptr<Store> reports) const {
    options.rendezvous_id = "id";
    options.stall_warning = std::chrono::seconds(1);
    Stores stores = stores_of(options);
    stores.reports = std::move(reports);
    return assemble(options, std::move(stores), network());
  }
  Result<std::unique_ptr<Engine>> join_without_secret(const EngineOptions& options) const {
    return assemble(options, stores_of(options), nullptr);
  }

 private:
  std::unique_ptr<HostNetwork> network() const {
    return std::make_unique<HostNetwork>(
        context_, HostNetwork::Options{.job = 7, .interfaces = {.use = {"lo"}}});
  }
  Stores stores_of(const EngineOptions& options) const {
    const int host = hosts_[static_cast<std::size_t>(options.topology.rank)];
    return {job_store_, local_stores_[static_cast<std::size_t>(host)]};
  }

  HostOfRank hosts_;
  std::shared_ptr<MemoryStore> job_store_ = std::make_shared<MemoryStore>();
  std::vector<std::shared_ptr<MemoryStore>> local_stores_;
  std::shared_ptr<const TlsContext> context_;
};

// Runs body(engine) on one thread for each rank, each with its own engine of one job.
template <class Body>
void run_job(const HostOfRank& hosts, const std::vector<std::vector<int>>& groups, Body body) {
  const int size = static_cast<int>(hosts.size());
  if (std::ranges::count(hosts, hosts.front()) == size) return run_job(size, groups, body);
  const JobOnHosts job(hosts);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.size(); ++rank)
    threads.emplace_back([&, rank] {
      const auto engine = value_or_abort(job.join(job.options(rank, groups)));
      body(*engine);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace farandole
