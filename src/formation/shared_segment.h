// Shared segment: passes memory through the LocalStore. One rank shares a segment under a key, and
// the ranks of its host attach it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "collective/costs.h"
#include "farandole/status.h"
#include "rendezvous/local_store.h"
#include "transport/shm/segment.h"

namespace farandole {

// Errors: kStop if a limit of the system is reached.
Result<Descriptor> duplicate_descriptor(const Descriptor& descriptor);
Status share_segment(LocalStore& store, const std::string& key, const Segment& segment);
// Makes the GroupMemory for the members of a group that are on one host, and shares it under `key`.
// `members` is their number.
Status share_group(LocalStore& store, const std::string& key, int members, const Costs& costs);

// Maps the segment of a value that share_segment() has stored under this key. Errors: kStop, for a
// limit of the system or an unexpected value.
Result<std::shared_ptr<Segment>> attach_segment(const std::string& key, const LocalValue& value,
                                                std::size_t bytes);
// Waits for the value of the key and then maps its segment. Errors: also those of
// LocalStore::receive().
Result<std::shared_ptr<Segment>> receive_segment(LocalStore& store, const std::string& key,
                                                 std::size_t bytes, const WaitLimit& limit);

}  // namespace farandole
