"""Compiled kernels, each beside a plain torch reference that the tests compare with."""
