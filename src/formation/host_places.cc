#include "formation/host_places.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/rank_names.h"
#include "base/try.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

std::vector<std::string> place_keys(int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(keys::place(rank));
  return keys;
}

Status missing_ranks_error(const StoreValues& places) {
  std::vector<int> missing_ranks;
  for (std::size_t rank = 0; rank < places.size(); ++rank)
    if (!places[rank]) missing_ranks.push_back(static_cast<int>(rank));
  return Status::rebuild_group(format_text(
      "{} did not come to the rendezvous of the job in time: has the launcher started all {} "
      "ranks, "
      "with the same FARANDOLE_JOB_STORE and FARANDOLE_SECRET, and does each call init()? A slow "
      "start can be given more time with FARANDOLE_START_TIMEOUT (seconds)",
      ranks_text(missing_ranks), places.size()));
}

}  // namespace

std::string own_place() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  std::array<char, 64> network_namespace{};
  const auto length =
      ::readlink("/proc/self/ns/net", network_namespace.data(), network_namespace.size() - 1);
  return format_text("{} {} {}", boot_id, length > 0 ? network_namespace.data() : "?", ::getuid());
}

Result<int> count_ranks_at(const std::string& place, int rank, int size, Store& store,
                           const WaitLimit& limit) {
  // Each formation has its own prefix for keys, so the epoch in the key is always kFirstEpoch.
  const std::string result_key = keys::complete(keys::kFirstEpoch);
  const Status publish_status = store.set(keys::place(rank), keys::text_value(place));
  if (publish_status.code() == StatusCode::kFixCall) {
    const Status error = Status::fix_call(format_text(
        "two processes have rank {} of {}; give each its own rank, in RANK or the variable of the "
        "launcher that you use, and end the ranks of earlier starts",
        rank, size));
    // We do not know which of the two processes with this rank is wrong. So all ranks must fail.
    (void)store.set(result_key, keys::text_value(error.message()));
    return error;
  }
  FARANDOLE_TRY(publish_status);
  auto places = store.wait_for_all(place_keys(size), result_key, limit);
  if (places.status().code() == StatusCode::kRetry && !(limit.interrupted && limit.interrupted())) {
    // This wait does not block, because the key of our own place exists and ends the wait.
    const std::function<bool()> never_interrupted;
    places =
        store.wait_for_all(place_keys(size), keys::place(rank), {TimePoint{}, never_interrupted});
    FARANDOLE_TRY(places.status());
    return missing_ranks_error(*places);
  }
  FARANDOLE_TRY(places.status());
  if (!std::ranges::all_of(*places, [](const auto& value) { return value.has_value(); })) {
    FARANDOLE_TRY_ASSIGN(const Bytes reason, store.wait(result_key, limit));
    return Status::rebuild_group(ByteReader(reason).get_text());
  }
  return static_cast<int>(std::ranges::count_if(
      *places, [&](const auto& value) { return ByteReader(*value).get_text() == place; }));
}

}  // namespace farandole
