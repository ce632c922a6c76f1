// A program in place of `farandole probe`, for tests of the examination: a real probe.
#include "probe/prober.h"

int main() { return farandole::run_probe("1.2.3"); }
