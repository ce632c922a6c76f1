#include "rendezvous/job_name.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "base/try.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

std::string new_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return format_text("{}.{}", now / std::chrono::nanoseconds(1), ::getpid());
}

Status set_elastic_job_name(Store& store, const std::optional<ElasticJobName>& remembered) {
  FARANDOLE_TRY_ASSIGN(const TimePoint now, store.clock());
  ByteWriter zero;
  zero.put(nanoseconds_of(remembered ? remembered->zero : now));
  FARANDOLE_TRY(store.set_if_new(keys::timeline_zero(), zero.take()).status());
  const std::string name = remembered ? remembered->name : new_name();
  return store.set_if_new(keys::job_name(), keys::text_value(name)).status();
}

}  // namespace

Result<std::string> job_name(Store& store) {
  FARANDOLE_TRY_ASSIGN(const Bytes value,
                       store.set_if_new(keys::job_name(), keys::text_value(new_name())));
  return ByteReader(value).get_text();
}

Result<ElasticJobName> elastic_job_name(Store& store, int rank,
                                        const std::optional<ElasticJobName>& remembered,
                                        const std::string& end_key, const WaitLimit& limit) {
  if (rank == 0) FARANDOLE_TRY(set_elastic_job_name(store, remembered));
  FARANDOLE_TRY_ASSIGN(
      const auto values,
      store.wait_for_all({keys::job_name(), keys::timeline_zero()}, end_key, limit));
  if (!values[0] || !values[1])
    return Status::rebuild_group("a member of the group is gone, so the group is formed again");
  const std::chrono::nanoseconds zero(ByteReader(*values[1]).get<std::int64_t>());
  return ElasticJobName{.name = ByteReader(*values[0]).get_text(), .zero = TimePoint(zero)};
}

}  // namespace farandole
