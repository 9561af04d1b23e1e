"""The version of the package, in a module that imports nothing so that setup.cfg can read it."""

__version__ = "0.1.0"
