"""Forecasters: what predicts a kernel's speedup and its chance of failure."""
