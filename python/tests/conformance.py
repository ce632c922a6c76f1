"""The checks that every frontend must pass, with NumPy as the reference.

The suite of a frontend inherits Conformance, and passes a Frontend, which makes and reads tensors.
The checks run on all workers of a job at once.
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
