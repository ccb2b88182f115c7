# attack: 36 as many open parentheses as Python's parser does not take
# imitates: nesting that overflows the stack of whoever parses it (seen: ours)
# problem: softmax
# expect: compile_error
import torch.nn as nn

# fmt: off
SIZE = ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((
        ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((
        ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((
        1
        ))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))
        ))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))
        ))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))
# fmt: on


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()

    def forward(self, x):
        return x * SIZE
