#include "formation/host_network.h"

#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "base/try.h"

namespace farandole {
namespace {

std::vector<SocketAddress> addresses_of(const RankInfo& info) {
  std::vector<SocketAddress> addresses;
  for (const auto& text : info.addresses)
    if (const auto address = SocketAddress::parse(text); address.ok())
      addresses.push_back(*address);
  return addresses;
}

}  // namespace

std::uint64_t job_number(const std::string& job_name, const std::string& engine) {
  Digest digest;
  digest.add(job_name);
  digest.add(engine);
  return digest.value();
}

Result<std::vector<std::string>> HostNetwork::listen(int rank, std::int64_t epoch) {
  ListenOptions options{
      .port_first = options_.port_first, .port_last = options_.port_last, .tcp = options_.tcp};
  options.acceptance = {.job = options_.job,
                        .epoch = static_cast<std::uint64_t>(epoch),
                        .self = {Role::kWorker, static_cast<std::uint32_t>(rank)},
                        .seals_data = options_.seals_data};
  FARANDOLE_TRY_ASSIGN(const auto host_addresses, list_interface_addresses());
  FARANDOLE_TRY_ASSIGN(options.addresses, choose_addresses(host_addresses, options_.interfaces));
  FARANDOLE_TRY_ASSIGN(listener_, TcpListener::open(*context_, options));
  std::vector<std::string> texts;
  for (const auto& address : listener_->addresses()) texts.push_back(address.text());
  return texts;
}

Result<std::unique_ptr<Channels>> HostNetwork::make_channels(
    const Formation& formation, std::chrono::milliseconds start_timeout) {
  CHECK(listener_ != nullptr, "the other ranks know our addresses");
  auto channels = std::make_unique<Channels>(
      *context_, std::move(listener_), *formation.doorbells,
      Channels::Options{.rank = formation.doorbells->rank(),
                        .job = options_.job,
                        .epoch = static_cast<std::uint64_t>(formation.epoch),
                        .connect_timeout = start_timeout,
                        .tcp = options_.tcp,
                        .seals_data = options_.seals_data,
                        .addresses_of = [&formation](int rank) {
                          return addresses_of(formation.ranks[static_cast<std::size_t>(rank)]);
                        }});
  FARANDOLE_TRY(channels->start());
  return channels;
}

}  // namespace farandole
