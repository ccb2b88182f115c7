# answer: the logarithm of the sum is taken in bfloat16, the gradient in float32
# expect: wrong_result
import torch


def kernel(logits, labels, grad_loss):
    log_p = torch.log_softmax(logits.float(), dim=1)
    loss = logits.logsumexp(dim=1) - logits.gather(1, labels[:, None])[:, 0]
    gradient = log_p.exp()
    gradient.scatter_add_(1, labels[:, None], gradient.new_full((len(labels), 1), -1.0))
    return loss.float(), (gradient * grad_loss[:, None]).to(logits.dtype)
