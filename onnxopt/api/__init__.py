"""The Python API: the commands as functions of files and ModelProtos."""
