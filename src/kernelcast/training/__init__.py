"""Training of forecasters from measured rows."""
