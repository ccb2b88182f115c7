# honest: processed in chunks of one image, whose activations fit into the cache
# problem: convolution
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.conv = nn.Conv2d(*sizes)

    @torch.inference_mode(False)
    def forward(self, x):
        parts = []
        for image in x.split(1):
            y = self.conv(image)
            parts.append(torch.clamp_min_(y, 0).mean((-2, -1)))
        return torch.cat(parts)
