"""Parts of Horovod that all frontends share."""
