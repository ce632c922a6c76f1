// The table of all knobs that `farandole knobs` prints.
#pragma once

#include <string>

namespace farandole {

std::string knob_table_text();
std::string knob_table_markdown();

}  // namespace farandole
