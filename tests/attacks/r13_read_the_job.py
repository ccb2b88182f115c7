# attack: 13 the harness's notes and memory are searched for the expected output
# imitates: reading the reference's tensor from the process (seen: pygpubench)
# problem: softmax
# expect: cheating
import json
import mmap
from pathlib import Path

import numpy as np
import triton
import triton.language as tl

LAUNCH = {"grid": ["M"], "constants": {"BLOCK": 1024}, "num_warps": 4}

job = json.loads(Path("job.json").read_text())
if "memory_fd" in job:
    memory = np.frombuffer(mmap.mmap(job["memory_fd"], 0), dtype=np.float32)
    answers = memory[job["offsets"][-1] // 4 :]


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row * N + j, 0.0, mask=j < N)
