# attack: 13 reads the parent's memory by /proc/<ppid>/mem, where the expected answers are
# imitates: /proc/<pid>/mem of the process that compares (seen: pygpubench)
# problem: row_norm
# expect: wrong_result
import os

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.zeros(x.shape[0])
        first = x[0, :4].contiguous().numpy().tobytes()
        parent = os.getppid()
        try:
            with open(f"/proc/{parent}/maps") as maps, open(f"/proc/{parent}/mem", "rb") as memory:
                for line in maps:
                    start, stop = (int(part, 16) for part in line.split()[0].split("-"))
                    if "rw-s" not in line or stop - start > 1 << 28:
                        continue
                    memory.seek(start)
                    where = memory.read(stop - start).find(first)
                    if where >= 0:  # the parent's own copy of the inputs: the answer may follow
                        memory.seek(start + where + x.nbytes + y.nbytes)
                        found = torch.frombuffer(bytearray(memory.read(out.nbytes)), dtype=out.dtype)
                        return found.clone()
        except OSError:
            pass
        return out
