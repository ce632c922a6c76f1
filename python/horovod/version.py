"""The Horovod release whose interface this package has. Programs compare it with the release that
they need. farandole.__version__ is the version of Farandole."""

__version__ = "0.28.1"
