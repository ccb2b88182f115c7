"""Reference for the cross_entropy_bf16 problem."""

import torch


def cross_entropy(logits, labels, grad_loss):
    """Return the loss of each row, and the gradient of the logits for that of the losses."""
    log_p = torch.log_softmax(logits, dim=1)
    loss = -log_p.gather(1, labels[:, None])[:, 0]
    wanted = torch.nn.functional.one_hot(labels, logits.shape[1])
    return loss, (log_p.exp() - wanted) * grad_loss[:, None]
