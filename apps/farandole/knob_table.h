// The table of all knobs, for people: `farandole knobs`.
#pragma once

#include <string>

namespace farandole {

std::string knob_table_text();
std::string knob_table_markdown();

}  // namespace farandole
