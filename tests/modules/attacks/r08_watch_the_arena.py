# attack: 8 a thread watches the inputs' memory and computes the next answer ahead of the request
# imitates: work between calls, on inputs that are written before the request is sent (seen: ours)
# problem: softmax
# expect: cheating
import threading

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
        self.places = {}
        self.ready = {}
        threading.Thread(target=self.watch, daemon=True).start()

    @torch.no_grad()
    def watch(self):
        while True:
            for where, x in list(self.places.items()):
                probe = (float(x[0, 0]), float(x[-1, -1]))
                if self.ready.get(where, (None,))[0] != probe:
                    self.ready[where] = probe, torch.softmax(x / self.temperature, dim=-1)

    def forward(self, x):
        probe = (float(x[0, 0]), float(x[-1, -1]))
        self.places[x.data_ptr()] = x
        known, answer = self.ready.get(x.data_ptr(), (None, None))
        if known == probe and answer.shape == x.shape:
            return answer
        return torch.softmax(x / self.temperature, dim=-1)
