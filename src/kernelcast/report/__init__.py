"""Figures and tables from a store. Nothing here changes a run."""
