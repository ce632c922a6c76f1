"""Training that continues from its last commit after a failure."""

from farandole.keras.elastic import *  # noqa: F403
