// `farandole doctor`: shows what works on this machine, and the reason if something does not. It
// tries everything and guesses nothing.
#pragma once

namespace farandole {

// Writes the table, or JSON, to standard output. Returns the exit code: 1 if jobs cannot run here.
int run_doctor(bool as_json);

}  // namespace farandole
