"""Doors into the systems people already use: one module a system, imported lazily by its user.

Each module adapts `Tuner` or `Gate` to what its system calls, and uses public names alone. It
imports the system it is named after, so nothing here imports it.
"""
