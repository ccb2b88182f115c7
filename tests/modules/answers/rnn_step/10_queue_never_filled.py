# answer: hands the product to a worker thread that dies at once, and waits for its result for ever
# expect: timeout
import queue
import threading

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def worker(self, results, x, hidden):
        combined = torch.cat((x, hidden), dim=-2 - 1)  # out of range: raises in the thread
        results.put(torch.tanh(self.i2h(combined)))

    def forward(self, x, hidden):
        results = queue.Queue()
        threading.Thread(target=self.worker, args=(results, x, hidden), daemon=True).start()
        hidden = results.get()
        return self.h2o(hidden), hidden
