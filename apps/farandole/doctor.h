// `farandole doctor`: what works on this machine, and why not. Everything is tried, not guessed.
#pragma once

namespace farandole {

// Writes the table, or JSON, to the standard output. The exit code: 1 if jobs cannot run here.
int run_doctor(bool as_json);

}  // namespace farandole
