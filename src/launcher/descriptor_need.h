// Descriptor need: what a job takes from the launcher's limit of open files. The launcher rejects a
// job by it, and the doctor tells it beforehand.
#pragma once

namespace farandole {

// Of each worker two streams, a socket, its handle, its flight record, and the two descriptors that
// it publishes.
inline constexpr int kDescriptorsPerWorker = 7;
// The job sheet; for some time the segments of groups, what the next worker inherits, and a look
// into /proc.
inline constexpr int kDescriptorsOfTheMoment = 17;
// What the launcher has open before it starts a worker.
inline constexpr int kDescriptorsAtStart = 9;

constexpr int descriptors_needed(int workers) {
  return kDescriptorsPerWorker * workers + kDescriptorsOfTheMoment;
}

}  // namespace farandole
