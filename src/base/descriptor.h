// Descriptor: owns one file descriptor and closes it in its destructor.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace farandole {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  // Gives a new, long-lived descriptor a number above 2. Otherwise, if the user's program has
  // closed its standard streams, the kernel would give their numbers to the next descriptors, and
  // the program's print() could write into our shared memory. −1 stays −1, and errno is kept.
  static Descriptor above_standard_streams(int number) {
    Descriptor owned(number);
    if (number < 0 || number > STDERR_FILENO) return owned;
    return Descriptor(::fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  bool valid() const { return number_ >= 0; }
  int get() const { return number_; }  // borrowed; −1 if empty
  int release() { return std::exchange(number_, -1); }
  void reset() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

}  // namespace farandole
