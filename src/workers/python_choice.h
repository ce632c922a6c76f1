// Finds the Python that the words `python` and `python3` stand for. This is the Python in the
// folder of the command `farandole`, even if the environment of this Python is not activated. If
// there is no Python in that folder, PATH decides.
#pragma once

#include <string>

namespace farandole {

struct PythonChoice {
  std::string program;     // a path, or the given word itself if PATH decides
  std::string other_path;  // the program in PATH; empty if PATH has the same one or none
};

// Other words, such as "train.py" or "/usr/bin/python3", are returned unchanged.
PythonChoice choose_python(const std::string& word);

}  // namespace farandole
