#include "formation/shared_segment.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/try.h"
#include "collective/group_memory.h"

namespace farandole {

Result<Descriptor> duplicate_descriptor(const Descriptor& descriptor) {
  Descriptor copy(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!copy.valid()) return Status::stop("cannot duplicate a descriptor: " + descriptor_advice());
  return copy;
}

Status share_segment(LocalStore& store, const std::string& key, const Segment& segment) {
  LocalValue value;
  FARANDOLE_TRY_ASSIGN(auto descriptor, duplicate_descriptor(segment.descriptor()));
  value.descriptors.push_back(std::move(descriptor));
  return store.share(key, std::move(value));
}

Status share_group(LocalStore& store, const std::string& key, int members, const Costs& costs) {
  FARANDOLE_TRY_ASSIGN(const auto segment,
                       Segment::create("farandole-group", GroupMemory::bytes_needed(members)));
  GroupMemory(segment->data(), members).costs() = costs;
  return share_segment(store, key, *segment);
}

Result<std::shared_ptr<Segment>> attach_segment(const std::string& key, const LocalValue& value,
                                                std::size_t bytes) {
  if (value.descriptors.size() != 1)
    return Status::stop(
        format_text("`{}` came with {} descriptors instead of 1; do all ranks run the same version "
                    "of Farandole?",
                    key, value.descriptors.size()));
  return Segment::attach(value.descriptors.front(), bytes);
}

Result<std::shared_ptr<Segment>> receive_segment(LocalStore& store, const std::string& key,
                                                 std::size_t bytes, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(const auto value, store.receive(key, limit));
  return attach_segment(key, value, bytes);
}

}  // namespace farandole
