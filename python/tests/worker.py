"""One worker of a test job. Its arguments are suites, each given as `module:Class`. It runs them
one after another, and the checks of a suite in alphabetical order.

All workers run all checks. If one check fails, its worker ends, and so does the job.
"""

from __future__ import annotations

import faulthandler
import importlib
import sys
import time

from farandole import lifecycle

# If a check takes longer than this, each worker prints its stack and ends. The limit is below the
# one of job.run_checks(), which would only kill the job.
CHECK_TIMEOUT_SECONDS = 250


def run_suite(suite: str) -> None:
    module, name = suite.split(":")
    faulthandler.dump_traceback_later(CHECK_TIMEOUT_SECONDS, exit=True)
    checks = getattr(importlib.import_module(module), name)()
    for attribute in dir(checks):
        if attribute.startswith("check_"):
            faulthandler.dump_traceback_later(CHECK_TIMEOUT_SECONDS, exit=True)  # restart the timer
            begin = time.monotonic()
            getattr(checks, attribute)()
            print(f"{attribute} {time.monotonic() - begin:.2f} s", flush=True)
    lifecycle.shutdown()  # each suite calls init()


def main(suites: list[str]) -> None:
    for suite in suites:
        run_suite(suite)
    print("all checks passed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
