"""Seed for the cross_entropy_bf16 problem: eager PyTorch, in float32."""

import torch


def kernel(logits, labels, grad_loss):
    """Return the loss of each row, and the gradient of the logits."""
    log_p = torch.log_softmax(logits.float(), dim=1)
    loss = torch.nn.functional.nll_loss(log_p, labels, reduction="none")
    gradient = log_p.exp()
    gradient.scatter_add_(1, labels[:, None], gradient.new_full((len(labels), 1), -1.0))
    return loss, (gradient * grad_loss[:, None]).to(logits.dtype)
