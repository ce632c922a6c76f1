// Tests of the examination start this program in place of `farandole probe`. It runs a real probe.
#include "probe/prober.h"

int main() { return farandole::run_probe("1.2.3"); }
