# attack: 38 denormals are flushed to zero at import, and flags of backends are set; all work is done
# imitates: set_flush_denormal(True), fast modes of libraries (seen: ours); no input of the problem
#   is small enough to show it
# problem: epilogue
# expect: no gain
import torch
import torch.nn as nn

torch.set_flush_denormal(True)
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
torch.set_float32_matmul_precision("high")
torch.use_deterministic_algorithms(False)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        x = self.linear(x)
        return torch.clamp(x * self.factor, -1.0, 1.0) + x
