# honest: a workspace kept between calls for temporaries only; the output is new each time
# problem: softmax
import torch
import torch.nn as nn


class Base(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
        self.workspace = torch.empty(0)

    def forward(self, x):
        if self.workspace.shape != x.shape:
            self.workspace = torch.empty_like(x)
        work = torch.div(x, self.temperature, out=self.workspace)
        work -= work.max(dim=-1, keepdim=True).values
        work.exp_()
        return work / work.sum(dim=-1, keepdim=True)


class Named(Base):
    """The name that is asked for is an alias of a subclass."""


ModelNew = Named
