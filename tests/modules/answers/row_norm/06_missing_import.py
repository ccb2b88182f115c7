# answer: uses nn without importing it
# expect: compile_error
import torch
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return F.pairwise_distance(x, y, eps=0.0)
