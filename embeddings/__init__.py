"""Tensors and kernels: table specs, and the modules that hold tables."""
