"""Modules of the launcher, at Horovod's paths."""
