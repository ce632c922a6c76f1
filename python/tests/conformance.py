"""What every frontend must do alike, checked with NumPy as the reference.

A frontend inherits Conformance and says in a Frontend how to make and read its tensors. The checks
run on all workers of a job at once.
"""

from __future__ import annotations

from group_checks import GroupChecks
from lifecycle_checks import LifecycleChecks
from mismatch_checks import MismatchChecks
from naming_programs import NamingPrograms
from operation_checks import OperationChecks
from random_programs import RandomPrograms


class Conformance(
    OperationChecks, GroupChecks, MismatchChecks, RandomPrograms, NamingPrograms, LifecycleChecks
):
    """All checks of the suite."""
