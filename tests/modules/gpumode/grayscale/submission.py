#!POPCORN leaderboard grayscale

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    return data @ torch.tensor([0.299, 0.587, 0.114], device=data.device)
