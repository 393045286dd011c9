"""The command line, one file per command."""

from onnxopt.lazy_modules import postpone_modules

postpone_modules()  # before a command imports anything
