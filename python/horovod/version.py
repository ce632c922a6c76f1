"""The release whose interface this is: programs compare it with what they need. Which Farandole is
behind it says farandole.__version__."""

__version__ = "0.28.1"
