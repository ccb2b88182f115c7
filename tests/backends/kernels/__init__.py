"""Real kernels in CUDA C++ and Triton, one a file; `gpu_problems` says what they compute."""
