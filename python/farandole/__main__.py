"""`python -m farandole` is the command `farandole`."""

import os
import sys

from farandole.errors import FarandoleError
from farandole.launcher_command import launcher_command

if __name__ == "__main__":
    try:
        os.execv(launcher_command(), ["farandole", *sys.argv[1:]])
    except (FarandoleError, OSError) as error:
        sys.exit(f"farandole: {error}")
