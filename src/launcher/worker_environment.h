// What workers find in their environment: who they are, and how many threads they should use.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace farandole {

using EnvironmentVariable = std::pair<std::string, std::string>;

// The descriptors that a worker inherits beside its standard ones.
struct WorkerDescriptors {
  int rendezvous = -1;
  int flight_record = -1;  // of the memory in which we read what the worker does
  int channel = -1;        // to the program that has started the job; −1: none
};

// What one worker gets over the inherited environment to know its place in a job on one host.
std::vector<EnvironmentVariable> place_of(int rank, int workers,
                                          const WorkerDescriptors& descriptors);

// What all workers get unless the user has set it. `cores`: those of usable_cores().
std::vector<EnvironmentVariable> defaults_for(int workers, int cores);

// Variables as execve wants them ("NAME=value"). A later list wins over an earlier one.
std::vector<std::string> merge_environment(
    const std::vector<std::vector<EnvironmentVariable>>& lists);
// "NAME=value" of this process.
std::vector<EnvironmentVariable> inherited_environment();

}  // namespace farandole
