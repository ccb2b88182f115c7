# answer: splits the rows over two threads that take two locks in opposite order; both wait for ever
# expect: timeout
import threading

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows_lock = threading.Lock()
        self.out_lock = threading.Lock()

    def forward(self, x, y):
        out = torch.empty(x.shape[0], dtype=x.dtype)
        half = x.shape[0] // 2
        both = threading.Barrier(2)

        def work(first, second, part):
            with first:
                both.wait()
                with second:
                    out[part] = (x[part] - y[part]).norm(dim=1)

        jobs = [
            threading.Thread(target=work, args=(self.rows_lock, self.out_lock, slice(0, half)), daemon=True),
            threading.Thread(target=work, args=(self.out_lock, self.rows_lock, slice(half, None)), daemon=True),
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        return out
