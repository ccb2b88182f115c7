"""A GPU emulated: what a kernel's PTX computes, and what the hardware would do for it."""
