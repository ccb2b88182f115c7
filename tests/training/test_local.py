"""A model in this process answers by its own log probabilities, and is read as any other."""

from __future__ import annotations

from typing import Any

import pytest

from kernelcast.dataset import recorded_trials, to_table
from kernelcast.judge.evaluation import Answer, ask, draw
from kernelcast.llm import Request
from kernelcast.outcomes import Outcomes
from kernelcast.training.language_model import LanguageModel
from kernelcast.training.local import LocalForecaster

from .conftest import search_rows
from .tiny_model import next_token, write_tiny_model

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return LanguageModel.load(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def _answers(model: LanguageModel, **options: Any) -> list[Answer]:
    searches = list(recorded_trials(to_table(search_rows(1, 4))))
    forecaster = LocalForecaster(model, **options)
    return ask(lambda: forecaster.knowing(()), draw(searches, with_text=True))


def test_log_probabilities_are_those_of_the_model(model: LanguageModel) -> None:
    forecaster = LocalForecaster(model, ask="direct")
    request = Request(
        messages=[{"role": "user", "content": "Which letter?"}],
        max_output_tokens=1,
        top_logprobs=20,
    )
    (reply,) = forecaster._client.ask_many([request])
    (token,) = reply.best.logprobs
    expected = next_token(model.model, model.tokenizer, "Which letter?")
    assert [chance for _, chance in token.top] == pytest.approx(expected.topk(20).values.tolist())
    assert token.token == model.tokenizer.decode([int(expected.argmax())])
    assert reply.usage.output_tokens == 1


def test_letters_become_forecasts(model: LanguageModel) -> None:
    forecasts = [answer.forecast for answer in _answers(model, ask="direct")]
    assert len(forecasts) == 3
    assert {forecast.forecaster for forecast in forecasts} == {"llm"}
    assert all(forecast.usage.input_tokens > 100 for forecast in forecasts)


def test_an_answer_that_cannot_be_read_and_a_prompt_that_is_too_long_say_so(
    model: LanguageModel,
) -> None:
    unread = [answer.forecast for answer in _answers(model, ask="digits")]
    assert all(forecast.unparsed for forecast in unread)
    assert unread[0].usage.output_tokens > len(Outcomes().letters)
    long = [answer.forecast for answer in _answers(model, ask="direct", max_tokens=10)]
    assert all(forecast.unparsed for forecast in long)
    assert "more than 10" in long[0].rationale
