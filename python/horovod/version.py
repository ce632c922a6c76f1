"""The Horovod release that has this interface, because programs compare it with what they need.
farandole.__version__ is the version of Farandole."""

__version__ = "0.28.1"
