# honest: star imports, semicolons, and names that hide built-in ones
# problem: row_norm
from math import *
from torch import *
from torch.nn import *


class ModelNew(Module):
    def __init__(self): super().__init__(); self.sum = 2.0

    def forward(self, input, other):
        abs = input - other; max = (abs ** self.sum).sum(1); return sqrt(max)
