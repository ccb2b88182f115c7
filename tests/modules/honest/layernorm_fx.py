# honest: a module traced by torch.fx, whose mul and sigmoid are replaced by silu in the graph
# problem: layernorm
import operator

import torch
import torch.fx
import torch.nn as nn


class Plain(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        y = self.norm(x) * self.gain
        return y * torch.sigmoid(y)


def with_silu(traced):
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target is operator.mul:
            y, other = node.args
            if other.target is torch.sigmoid:
                with traced.graph.inserting_before(node):
                    silu = traced.graph.call_function(nn.functional.silu, (y,))
                node.replace_all_uses_with(silu)
                traced.graph.erase_node(node)
                traced.graph.erase_node(other)
    traced.recompile()
    return traced


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.inner = with_silu(torch.fx.symbolic_trace(Plain(features)))

    def forward(self, x):
        return self.inner(x)
