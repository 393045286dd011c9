"""A short start of the process: packages, modules and methods made on demand."""
