"""The part of nanobind that depends on the version of Python; `farandole.core` imports it.

The wheel contains this part for the versions of Python that have been released. For later versions,
pip installs the package nanobind-backend (docs/decisions/0044).
"""

try:
    from farandole._nb_backend_v1 import fill
except ModuleNotFoundError:
    from nanobind_backend import fill

__all__ = ["fill"]
