# attack: 33 the first call never returns: it finds the service in the frames above, and answers the
#   requests itself, with tensors that it made once
# imitates: a request loop of its own, which is faster than the harness's (seen: ours)
# problem: softmax
# expect: no gain
import os
import struct
import sys

import torch
import torch.nn as nn


def above():
    """The service and the runner."""
    frame, found = sys._getframe(), {}
    while frame is not None:
        found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found["service"], found["runner"]


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        try:
            service, runner = above()
        except KeyError:  # where it is built
            return torch.softmax(x / self.temperature, dim=-1)
        service.loaded()
        tensors, kept = {}, []
        while request := os.read(service.request_fd, 4096):
            nonce, phase, calls, index, base = struct.unpack("<5q", request)
            case = runner._cases[index]
            if phase == 4:
                kept.clear()
                for call in range(calls):
                    name, dtype, shape, offset = case.arrays[0]
                    place = base + call * case.stride + offset
                    if (index, place) not in tensors:
                        count = shape[0] * shape[1]
                        flat = torch.frombuffer(service.memory, dtype=torch.float32, count=count, offset=place)
                        tensors[index, place] = flat.view(shape)
                    kept.append(torch.softmax(tensors[index, place] / self.temperature, dim=-1))
                    runner._addresses[call] = kept[-1].data_ptr()
            os.write(service.reply_fd, struct.pack("<qq", nonce, 0))
        os._exit(0)
