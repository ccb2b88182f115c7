"""Where jobs run: one slot a device."""
