from __future__ import annotations

from unpacked_packages import new_packages

PLAN = """\
Inst munge (0.5.15-2 Debian:12/oldstable [amd64])
Inst libmunge2 [0.5.15-1] (0.5.15-2 Debian:12/oldstable [amd64])
Inst slurmd (22.05.8-4 Debian:12/oldstable [amd64])
Conf munge (0.5.15-2 Debian:12/oldstable [amd64])
Conf slurmd (22.05.8-4 Debian:12/oldstable [amd64])
"""


def test_new_packages_are_those_that_are_not_installed_yet() -> None:
    assert new_packages(PLAN) == ["munge", "slurmd"]
    assert new_packages("") == []
