"""`python -m farandole` is the command `farandole`."""

import sys

from farandole.errors import FarandoleError
from farandole.launcher_command import become_launcher, launcher_command

if __name__ == "__main__":
    try:
        become_launcher(launcher_command(), ["farandole", *sys.argv[1:]])
    except (FarandoleError, OSError) as error:
        sys.exit(f"farandole: {error}")
