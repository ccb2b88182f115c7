"""A language model in this process as a forecaster, without a server between."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from kernelcast.forecasters.llm import Answering, LlmForecaster
from kernelcast.llm import Answer, Price, Reply, Request, TokenLogprob, find_object
from kernelcast.training.language_model import LanguageModel
from kernelcast.types import Usage


class LocalForecaster(LlmForecaster):
    """The forecaster of language models, with a model in memory in place of an endpoint.

    Prompts and the reading of answers are those of a run. Prompts of more than `max_tokens` are not
    answered.
    """

    def __init__(self, model: LanguageModel, *, max_tokens: int = 8192, **options: Any) -> None:
        self._answering = _Answers(model, max_tokens)
        super().__init__(**options)

    def _connect(self, endpoint: Mapping[str, Any]) -> Answering:
        del endpoint
        return self._answering


class _Answers:
    """The likeliest answer of a model, token by token."""

    price = Price(source="a model in this process")

    def __init__(self, model: LanguageModel, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens

    def quote(self, request: Request) -> Usage:
        return Usage(
            input_tokens=len(self._model.prompt_tokens(request.messages)),
            output_tokens=request.max_output_tokens,
        )

    def ask_many(self, requests: Iterable[Request]) -> list[Reply]:
        return [self._ask(request) for request in requests]

    def _ask(self, request: Request) -> Reply:
        began_s = time.perf_counter()
        prompt = self._model.prompt_tokens(request.messages)
        if len(prompt) > self._max_tokens:
            error = f"the prompt has {len(prompt)} tokens, more than {self._max_tokens}"
            unread = Answer(outcome="too_large", error=error)
            return Reply(samples=(unread,), usage=Usage(), attempts=1)
        text, logprobs = self._written(prompt, request)
        parsed = find_object(text, request.schema) if request.schema is not None else None
        usage = Usage(
            input_tokens=len(prompt),
            output_tokens=len(logprobs),
            seconds=time.perf_counter() - began_s,
        )
        answer = Answer(outcome="ok", text=text, parsed=parsed, logprobs=logprobs)
        return Reply(samples=(answer,), usage=usage, attempts=1)

    def _written(self, prompt: list[int], request: Request) -> tuple[str, tuple[TokenLogprob, ...]]:
        import torch

        model, tokenizer = self._model.model, self._model.tokenizer
        tokens = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            written = model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=request.max_output_tokens,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=self._model.pad_token,
                output_logits=True,
                return_dict_in_generate=True,
            )
        ids = written.sequences[0, len(prompt) :].tolist()
        logprobs = []
        for token, logits in zip(ids, written.logits, strict=True):
            chances = torch.log_softmax(logits[0].float(), dim=-1)
            top = torch.topk(chances, request.top_logprobs or 1)
            likeliest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            logprobs.append(
                TokenLogprob(
                    token=tokenizer.decode([token]),
                    logprob=float(chances[token]),
                    top=tuple((tokenizer.decode([at]), chance) for at, chance in likeliest),
                )
            )
        return tokenizer.decode(ids, skip_special_tokens=True), tuple(logprobs)
