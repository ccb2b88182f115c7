# attack: 36 sizes that take for ever if a parent works them out from the text; nothing runs them
# imitates: text of a candidate that the harness evaluates (seen: ours)
# problem: histogram
# expect: wrong_result
import torch
import torch.nn as nn

TYPE_CHECKING = False
if TYPE_CHECKING:
    batch_size = 9**9**9**9
    length = (1 << 1 << 62) % 10
    bins = len("x" * 10**15)
    name = "%999999999999d" % 1


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return torch.zeros(values.shape[0], self.bins, dtype=torch.int32)
