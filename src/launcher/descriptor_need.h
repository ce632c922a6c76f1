// How many file descriptors the launcher needs for a job. If its limit is too low, the launcher
// rejects the job; `farandole doctor` shows the number beforehand.
#pragma once

namespace farandole {

// For each worker: two streams, a socket, a pidfd, its flight record, and the two descriptors that
// it publishes in the store.
inline constexpr int kDescriptorsPerWorker = 7;
// In addition: the job sheet and, only for a while, the segments of groups that are forming, the
// descriptors that the next worker inherits, and a folder of /proc.
inline constexpr int kFurtherDescriptors = 17;
// What the launcher has open before it starts the first worker.
inline constexpr int kDescriptorsAtStart = 9;

constexpr int descriptors_needed(int workers) {
  return kDescriptorsPerWorker * workers + kFurtherDescriptors;
}

}  // namespace farandole
