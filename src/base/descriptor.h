// Descriptor: owns one file descriptor; closes it in the end.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace farandole {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  // A new one that lives long inside a program which is not ours: never 0, 1 or 2. Where these are
  // closed they are given out first, and then the program's print() would write into our memory.
  // −1 stays −1, and keeps errno.
  static Descriptor beyond_standard(int number) {
    Descriptor given(number);
    if (number < 0 || number > STDERR_FILENO) return given;
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
  int get() const { return number_; }  // borrowed; −1 when empty
  int release() { return std::exchange(number_, -1); }
  void reset() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

}  // namespace farandole
