# attack: 12 the nonce is read from the callers' frames, and the reply sent before the work is done
# imitates: a harness whose state is in reach of the candidate (seen: pygpubench)
# problem: row_norm
# expect: crash
import os
import stat
import struct
import sys

import torch
import torch.nn as nn


def found_nonces(frame):
    while frame is not None:
        for name, value in frame.f_locals.items():
            if "nonce" in name and isinstance(value, int):
                yield value
            if isinstance(value, dict) and isinstance(value.get("nonce"), int):
                yield value["nonce"]
            nonce = getattr(value, "nonce", None)
            if isinstance(nonce, int):
                yield nonce
        frame = frame.f_back


class ModelNew(nn.Module):
    def forward(self, x, y):
        nonce = next(found_nonces(sys._getframe()), 1)
        for fd in range(3, 1024):
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.write(fd, struct.pack("<qq", nonce, 0))
            except OSError:
                pass
        d = x - y
        return torch.sqrt((d * d).sum(dim=1))
