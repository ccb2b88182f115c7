# honest: prints, warnings and logging at import, in the constructor and in the first calls
# problem: softmax
import logging
import sys
import warnings

import torch
import torch.nn as nn

logging.basicConfig(level=logging.INFO)
log = logging.getLogger(__name__)
print("softmax: module loaded", flush=True)


class ModelNew(nn.Module):
    calls = 0

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
        warnings.warn(f"a temperature of {temperature} is unusual", stacklevel=2)
        print(f"{temperature=}", file=sys.stderr)

    def forward(self, x):
        if ModelNew.calls < 3:
            log.info("x is %s, %s", tuple(x.shape), x.dtype)
            print("call", ModelNew.calls)
        ModelNew.calls += 1
        return torch.softmax(x.div(self.temperature), -1)
