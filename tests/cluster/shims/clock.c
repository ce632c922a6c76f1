// LD_PRELOAD shim with a false wall clock. It shows CLOCK_START (in seconds) when a process begins,
// and moves by CLOCK_STEP seconds whenever the process reads it. With the step 0, all events have
// the same time. The monotonic clock is correct.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t read_wall_clock(void) {
  static atomic_long read_count;
  const char* start = getenv("CLOCK_START");
  const char* step = getenv("CLOCK_STEP");
  if (start == NULL || step == NULL) abort();
  return atol(start) + atol(step) * atomic_fetch_add(&read_count, 1);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
    return ((int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
  *now = (struct timespec){.tv_sec = read_wall_clock()};
  return 0;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  *now = (struct timeval){.tv_sec = read_wall_clock()};
  return 0;
}

time_t time(time_t* now) {
  const time_t seconds = read_wall_clock();
  if (now != NULL) *now = seconds;
  return seconds;
}
