# answer: records its first output for a shape as a "graph" and replays it for every later input of that shape
# expect: wrong_result
import torch
import torch.nn as nn


class Graph:
    def __init__(self, function, example):
        self.output = function(example)

    def replay(self, x):
        return self.output.clone()


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.graphs = {}

    def _run(self, x):
        return torch.relu_(self.conv(x)).mean(dim=(2, 3))

    def forward(self, x):
        if x.shape not in self.graphs:
            self.graphs[x.shape] = Graph(self._run, x)
        return self.graphs[x.shape].replay(x)
