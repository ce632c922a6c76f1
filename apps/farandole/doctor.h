// `farandole doctor`: shows what works on this machine, and the reason if something does not. It
// tries every feature instead of guessing from version numbers.
#pragma once

namespace farandole {

// Writes the table, or JSON, to standard output. Returns the exit code: 1 if jobs cannot run here.
int run_doctor(bool as_json);

}  // namespace farandole
