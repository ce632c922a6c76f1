"""Callbacks for fit()."""

from farandole.keras.callbacks import *  # noqa: F403
