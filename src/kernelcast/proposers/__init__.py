"""Proposers: what writes new kernels from a parent."""
