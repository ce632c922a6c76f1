"""One worker of a test job: runs the checks of a suite, `module:Class`, in alphabetical order.

All workers run all checks. One that fails ends its worker, and so the job.
"""

from __future__ import annotations

import faulthandler
import importlib
import sys
import time

# For one check: shows where each worker stands. A little less than the patience of job.run_checks.
HANG_SECONDS = 100


def main(suite: str) -> None:
    module, name = suite.split(":")
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    checks = getattr(importlib.import_module(module), name)()
    for attribute in dir(checks):
        if attribute.startswith("check_"):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)  # anew
            begin = time.monotonic()
            getattr(checks, attribute)()
            print(f"{attribute} {time.monotonic() - begin:.2f} s", flush=True)
    print("all checks passed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
