# attack: 27 a survivor is to be forked by atexit, when the process is no longer watched
# imitates: work after the end of the measurement (seen: ours); where the process is ended by a
#   signal, nothing of it happens
# problem: softmax
# expect: no gain
import atexit
import os
import time

import torch
import torch.nn as nn


@atexit.register
def survive():
    if os.fork() == 0:
        os.setsid()
        with open("/tmp/kernelcast-attack-survivor", "w") as file:
            file.write("alive\n")
        time.sleep(10)
        os._exit(0)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return torch.softmax(x / self.temperature, dim=-1)
