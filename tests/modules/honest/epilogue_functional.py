# honest: no submodule: bare parameters, drawn in the order in which nn.Linear draws them
# problem: epilogue
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.w = nn.Parameter(torch.empty(out_features, in_features))
        self.b = nn.Parameter(torch.empty(out_features))
        nn.init.kaiming_uniform_(self.w, a=math.sqrt(5))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.b, -bound, bound)
        self.factor = factor

    def forward(self, x):
        y = F.linear(x, self.w, self.b)
        return y + torch.minimum(torch.maximum(y * self.factor, -y.new_ones(())), y.new_ones(()))
