// Descriptor need: what a job takes from the launcher's limit of open files. The launcher refuses a
// job by it, and the doctor tells it beforehand.
#pragma once

namespace farandole {

// Of each worker two streams, a socket, its handle, and the two descriptors that it publishes.
inline constexpr int kDescriptorsPerWorker = 6;
// For some time the segments of groups, what the next worker inherits, and a look into /proc.
inline constexpr int kDescriptorsOfTheMoment = 16;
// What the launcher has open before it starts a worker.
inline constexpr int kDescriptorsAtStart = 9;

constexpr int descriptors_needed(int workers) {
  return kDescriptorsPerWorker * workers + kDescriptorsOfTheMoment;
}

}  // namespace farandole
