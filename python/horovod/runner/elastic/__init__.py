"""Modules of the elastic launcher, at Horovod's paths."""
