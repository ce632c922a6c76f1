"""Modules of the launcher, at the paths where Horovod has them."""
