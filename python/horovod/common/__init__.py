"""Horovod's modules that its frontends share."""
