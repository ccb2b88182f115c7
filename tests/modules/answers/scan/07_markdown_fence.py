# answer: the answer's Markdown fence and a sentence were left in the module
# expect: compile_error
Here is the optimized version of the model, which fuses the mask into the scan:

```python
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        return torch.cumsum(x.masked_fill(~mask, 0), dim=self.dim)
```
