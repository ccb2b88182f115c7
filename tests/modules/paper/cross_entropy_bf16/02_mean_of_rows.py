# answer: the gradient is that of the mean of the losses, as training code often wants it
# expect: wrong_result
import torch


def kernel(logits, labels, grad_loss):
    log_p = torch.log_softmax(logits.float(), dim=1)
    loss = torch.nn.functional.nll_loss(log_p, labels, reduction="none")
    gradient = log_p.exp()
    gradient.scatter_add_(1, labels[:, None], gradient.new_full((len(labels), 1), -1.0))
    gradient = gradient * (grad_loss / len(labels))[:, None]
    return loss, gradient.to(logits.dtype)
