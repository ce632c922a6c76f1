"""The modules of Horovod that all frontends share."""
