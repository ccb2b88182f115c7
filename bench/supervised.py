"""Supervised letters of a language model beside the default forecaster, on tracks T and L.

The models are tiny Llamas, trained from nothing on one core: 40,000 parameters on track T, a
quarter of a million on track L. They stand for what two cores can train. They do not tell what a
model of 20 billion parameters reaches that has read code before.

Track T: the pairs of configurations that `rewards_small.py` judges, with its supervised letters.
`trees` is the default forecaster, which is a Gaussian process for configurations. It knows the
times of the same problem on the training GPUs, and the anchor is all that it has measured;
`trees_after_25` has measured 25 more. Of a problem that was not trained, it knows no other GPU's
times. `base_rates` are the shares of the bins by problem. Half of the pairs are drawn evenly over
the bins. Letters and base rates are trained on this mix, and the trees are not told of it:
`as_they_come` are the pairs of the other half alone.

Track L: the recorded searches (llm_sol_mi350x), held out by problem. A search is replayed, and
both are asked about the same kernels: those whose anchor's text was published, failures included.
The model reads the last 400 words and signs of the prompt that `ask="direct"` sends. `prior` are
the shares of the outcomes among the training questions. One fold of three is left to choose the
model's settings (--tune), and the other two are reported.

The winner is ahead in both CRPS and half-Brier beyond the 95% interval of the difference, over
spaces (T) or problems (L) drawn with replacement. Otherwise there is none.

    python bench/supervised.py [--quick] [--tune] [--seed 0] [--work DIR] [--out JSON]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import copy
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import rewards_small
from _data import Floats, Space
from _result import bench_parser, report, rounded
from _written import searched_rows
from kernelcast.bins import DEFAULT_BINS
from kernelcast.dataset import Rows, recorded_trials, split_by
from kernelcast.dataset.recordings import configured, recorded_device
from kernelcast.devices import same_vendor
from kernelcast.distribution import Distribution
from kernelcast.forecasters._prompts import REMEMBERED, Prompts
from kernelcast.forecasters.trees import DeviceTimes, TreesForecaster
from kernelcast.judge.evaluation import Answer, Evaluation, ask, draw, evaluate
from kernelcast.llm import Message
from kernelcast.outcomes import CAUSES, Outcomes
from kernelcast.scoring import crps, half_brier
from kernelcast.training.folds import Fold
from kernelcast.training.language_model import LanguageModel
from kernelcast.training.pairs import Question, questions
from kernelcast.training.supervised import Settings, train
from kernelcast.training.trees import train_source_model
from kernelcast.types import Forecast, Measurement, Observation, Problem, Query, Spend, Timing
from rewards_small import Ask, Pair, judged, scores

_OUTCOMES = Outcomes()
_LETTER_STEPS = 1500  # as in rewards_small
_PAIRS = 150  # of each space, as in rewards_small
_MORE_MEASURED = 25
_PAIR_SCORES = ("crps", "half_brier", "ece", "aurc", "error", "spearman", "distinct", "asked")

_FOLDS, _TUNED_ON = 3, 0
_READ = 400  # words and signs at the end of a prompt
_WORDS = 3000
_WIDTH, _LAYERS = 64, 2
_KERNEL_SCORES = ("crps", "half_brier", "ece", "auroc_failure", "auroc_gain", "spearman")
_RESAMPLES = 1000
_WORD = r"\w+|\S"


def main() -> None:
    parser = bench_parser(__doc__, quick="few pairs and problems, models of a few steps")
    parser.add_argument("--tune", action="store_true", help="track L on the fold for settings")
    parser.add_argument("--steps", type=int, default=240, help="training steps on track L")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="on track L")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder that keeps the letters of track T")
    options = parser.parse_args()
    began = time.monotonic()
    recipe = Recipe(steps=options.steps, learning_rate=options.learning_rate, seed=options.seed)
    result: dict[str, Any] = {}
    winners: dict[str, Any] = {}
    if not options.tune:
        result["track_t"], by_set = track_t(options.seed, options.work, quick=options.quick)
        winners |= {"t": by_set["all"], "t_by_set": by_set}
        print(f"track T: {time.monotonic() - began:.0f} s, {winners}", flush=True)
    if options.quick:
        recipe, held_out = replace(recipe, steps=6), [0]
        result["track_l"], winners["l"] = track_l(searched_rows(14), 2, held_out, recipe)
    else:
        held_out = [_TUNED_ON] if options.tune else [n for n in range(_FOLDS) if n != _TUNED_ON]
        result["track_l"], winners["l"] = track_l(searched_rows(), _FOLDS, held_out, recipe)
    result |= {
        "winner": winners,
        "models": {
            "note": "tiny Llamas from nothing: what two cores can train, not what a 20B reaches",
            "track_l": {"steps": recipe.steps, "learning_rate": recipe.learning_rate},
        },
        "tuned": (
            "track L: 240 steps in place of 100 after one look at fold 0; "
            "the other folds are reported"
        ),
        "seed": options.seed,
        "cpu_s": round(time.process_time(), 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    report(rounded(result), options, "torch", "transformers")


# ------------------------------------------------------------------------- differences


def difference(mine: Floats, other: Floats, groups: Sequence[str]) -> dict[str, Any]:
    """The mean of one's losses less that of another's, and its 95% interval over groups."""
    _, group = np.unique(groups, return_inverse=True)
    total = np.bincount(group, weights=np.asarray(mine) - np.asarray(other))
    count = np.bincount(group)
    chosen = np.random.default_rng(0).integers(len(count), size=(_RESAMPLES, len(count)))
    means = total[chosen].sum(axis=1) / count[chosen].sum(axis=1)
    return {
        "mean": float(total.sum() / count.sum()),
        "interval": [float(end) for end in np.quantile(means, [0.025, 0.975])],
    }


def winner(supervised_less_trees: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of what is ahead in every loss beyond its interval; none if neither is."""
    intervals = [each["interval"] for each in supervised_less_trees.values()]
    if all(high < 0.0 for _, high in intervals):
        return "supervised"
    return "trees" if all(low > 0.0 for low, _ in intervals) else "none"


# ------------------------------------------------------------------------------ track T


def track_t(seed: int, work: Path | None, *, quick: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Scores by set of pairs and arm with the differences, and the winner of each set."""
    each = 6 if quick else _PAIRS
    with tempfile.TemporaryDirectory() as folder:
        base = rewards_small.Base(work or Path(folder), seed, tune=False, quick=quick)
        if not (base.letters / "tokenizer.json").exists():
            rewards_small.train_letters(base, 20 if quick else _LETTER_STEPS)
        model = rewards_small.opened(base.letters)
    arms: dict[str, Ask] = {
        "supervised": lambda pairs: rewards_small.letters(model, pairs),
        "trees": asked_trees,
        "trees_after_25": lambda pairs: asked_trees(pairs, _MORE_MEASURED),
        "base_rates": rewards_small.base_rates(tune=False),
    }
    by_arm = {}
    for name, arm in arms.items():
        by_arm[name] = judged_pairs(arm, each)
        print(f"track T: {name} {by_arm[name]['all']['crps']:.4f}", flush=True)
    result: dict[str, Any] = {}
    winners = {}
    for kind in by_arm["supervised"]:
        mine, other = (by_arm[arm][kind]["by_space"] for arm in ("supervised", "trees"))
        losses = {
            loss: difference(
                np.array([mine[space][loss] for space in mine]),
                np.array([other[space][loss] for space in mine]),
                list(mine),
            )
            for loss in ("crps", "half_brier")
        }
        result[kind] = {
            **{
                arm: {name: judgement[kind][name] for name in _PAIR_SCORES}
                for arm, judgement in by_arm.items()
            },
            "supervised_less_trees": losses,
        }
        winners[kind] = winner(losses)
    return result, winners


def judged_pairs(arm: Ask, each: int) -> dict[str, Any]:
    """The scores of rewards_small, and those over the half of the pairs drawn as they come."""
    pairs: list[Pair] = []
    chances: list[Floats] = []

    def remembered(asked: Sequence[Pair]) -> Floats:
        pairs.extend(asked)
        chances.append(arm(asked))
        return chances[-1]

    result = judged(remembered, tune=False, each=each)
    plain = as_they_come(pairs)
    chosen = [pair for pair, kept in zip(pairs, plain, strict=True) if kept]
    return {**result, "as_they_come": scores(chosen, np.concatenate(chances)[plain])}


def as_they_come(pairs: Sequence[Pair]) -> Any:
    """Which pairs are of the second half of their space: `drawn` puts the even ones first."""
    count = Counter(id(pair.space) for pair in pairs)
    met: Counter[int] = Counter()
    kept = []
    for pair in pairs:
        kept.append(met[id(pair.space)] >= count[id(pair.space)] // 2)
        met[id(pair.space)] += 1
    return np.array(kept)


def asked_trees(pairs: Sequence[Pair], more: int = 0) -> Floats:
    """The default forecaster's chances of each pair's bins, by what it knows of the space.

    It has measured the anchor, and `more` configurations that no pair of the space asks about.
    """
    chances = np.zeros((len(pairs), _OUTCOMES.count))
    taught: dict[int, Taught] = {}
    for number, pair in enumerate(pairs):
        if id(pair.space) not in taught:
            taught[id(pair.space)] = Taught.of([p for p in pairs if p.space is pair.space], more)
        forecast = taught[id(pair.space)].forecast(pair)
        bins = forecast.distribution.bin_probabilities(_OUTCOMES.bins)
        chances[number, len(CAUSES) :] = bins
    return chances


@dataclass(frozen=True, eq=False)
class Taught:
    """The default forecaster of one space before any anchor is measured."""

    space: Space
    problem: Problem
    forecaster: TreesForecaster

    @classmethod
    def of(cls, pairs: Sequence[Pair], more: int) -> Taught:
        space = pairs[0].space
        problem = Problem.unstated(space.problem, "cuda", "", family=space.family)
        others = rewards_small.trained_spaces(tune=False)
        known = [times_on(other, space) for other in others if other.problem == space.problem]
        taught = cls(space, problem, TreesForecaster(lambda *_: known))
        asked = [at for pair in pairs for at in (pair.anchor, pair.candidate)]
        ran = np.flatnonzero(np.isfinite(space.runtime_ms))
        free = np.setdiff1d(ran, asked)
        measured = np.random.default_rng(1).choice(free, min(more, len(free)), replace=False)
        unit = float(np.median(space.runtime_ms[ran]))
        taught.forecaster.learn([taught.observed(at, unit) for at in measured.tolist()])
        taught.forecaster.forecast([taught.query(pairs[0], unit)])  # it keeps what it has read
        return taught

    def forecast(self, pair: Pair) -> Forecast:
        unit = float(np.median(self.space.runtime_ms[np.isfinite(self.space.runtime_ms)]))
        forecaster = copy.deepcopy(self.forecaster)
        forecaster.learn([self.observed(pair.anchor, unit)])
        (forecast,) = forecaster.forecast([self.query(pair, unit)])
        return forecast

    def query(self, pair: Pair, unit_ms: float) -> Query:
        anchor, candidate = (
            configured(self.space.problem, "cuda", self.space.configurations[at])
            for at in (pair.anchor, pair.candidate)
        )
        anchor_ms = float(self.space.runtime_ms[pair.anchor])
        return Query(
            problem=self.problem,
            device=recorded_device({"device": self.space.gpu, "source": "tuner spaces"}),
            candidate=candidate,
            anchor=anchor,
            anchor_log2_speedup=float(np.log2(unit_ms / anchor_ms)),
            anchor_runtime_s=anchor_ms * 1e-3,
        )

    def observed(self, at: int, unit_ms: float) -> Observation:
        kernel = configured(self.space.problem, "cuda", self.space.configurations[at])
        ms = float(self.space.runtime_ms[at])
        log2_speedup = float(np.log2(unit_ms / ms))
        timing = Timing(
            log2_speedup=log2_speedup,
            low=log2_speedup,
            high=log2_speedup,
            resolved=True,
            runtime_s=ms * 1e-3,
            reference_runtime_s=unit_ms * 1e-3,
            cases=(),
        )
        measurement = Measurement(
            kernel_id=kernel.id,
            problem_id=self.problem.id,
            device_id=self.space.gpu,
            toolchain="recorded",
            timing=timing,
            device_s=0.0,
        )
        return Observation(kernel=kernel, measurement=measurement)


def times_on(other: Space, space: Space) -> DeviceTimes:
    """What a space on another GPU teaches about this one."""
    times = {
        key: float(np.log2(ms * 1e-3)) if np.isfinite(ms) else None
        for key, ms in zip(other.keys, other.runtime_ms.tolist(), strict=True)
    }
    return DeviceTimes(other.gpu, times, same_vendor(other.gpu, space.gpu))


# ------------------------------------------------------------------------------ track L


@dataclass(frozen=True)
class Recipe:
    """How the model of track L is trained."""

    steps: int
    learning_rate: float
    seed: int
    batch: int = 32


Chances = Callable[[Query, Sequence[Observation]], Floats]
"""The chance of each outcome of a query, after what was measured."""


class ChancesForecaster:
    """A forecaster of chances of outcomes, read as `LlmForecaster` reads letters."""

    concurrency = 0
    refreshes = False

    def __init__(self, name: str, chances: Chances) -> None:
        self.name = name
        self._chances = chances
        self._measured: tuple[Observation, ...] = ()

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return no cost."""
        del queries
        return {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep what a prompt may list, as the training questions have it."""
        self._measured = (*self._measured, *observations)[-REMEMBERED:]

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Return one forecast per query."""
        return [self._forecast(query) for query in queries]

    def _forecast(self, query: Query) -> Forecast:
        chances = self._chances(query, self._measured)
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.from_bins(_OUTCOMES.bins, chances[len(CAUSES) :]),
            failure=dict(zip(CAUSES, chances.tolist(), strict=False)),
        )


def track_l(
    rows: Rows, folds: int, held_out: Sequence[int], recipe: Recipe
) -> tuple[dict[str, Any], str]:
    """Scores by arm over the folds that are held out, with the differences, and the winner."""
    answers: dict[str, list[Answer]] = {"supervised": [], "trees": [], "prior": []}
    sizes = []
    for number, split in enumerate(split_by(rows, "problem", folds=folds, seed=recipe.seed)):
        if number not in held_out:
            continue
        fold = Fold(number, train_source_model(split.train, recipe.seed), split.test, recipe.seed)
        answers["trees"] += [a for a in fold.searched() if a.trial.query.anchor.source]
        prompts = Prompts("direct")
        learnt = [shortened_question(each) for each in questions(split.train, prompts)]
        model = trained(learnt, recipe)
        outcomes = np.bincount([each.outcome for each in learnt], minlength=_OUTCOMES.count)
        shares = (outcomes + 0.5) / (outcomes + 0.5).sum()
        arms: dict[str, Chances] = {
            "supervised": Letters(model, prompts),
            "prior": partial(always, shares),
        }
        trials = recorded_trials(split.test, "best", order="shuffled", seed=recipe.seed)
        asked = draw(list(trials), with_text=True)
        for name, chances in arms.items():
            answers[name] += ask(partial(ChancesForecaster, name, chances), asked)
        sizes.append({"fold": number, "questions": len(learnt), "parameters": parameters(model)})
        print(f"track L: {sizes[-1]}, {time.process_time():.0f} CPU s", flush=True)
    named = [[answer.trial.row_id for answer in part] for part in answers.values()]
    assert named[0] == named[1] == named[2], "the arms were asked about different kernels"
    ours, trees = answers["supervised"], answers["trees"]
    ran = [at for at, answer in enumerate(trees) if answer.trial.log2_speedup is not None]
    mine, other = (losses([part[at] for at in ran]) for part in (ours, trees))
    groups = [trees[at].group for at in ran]
    differences = {loss: difference(mine[loss], other[loss], groups) for loss in mine}
    result = {
        **{name: figures(evaluate(part)) for name, part in answers.items()},
        "supervised_less_trees": differences,
        "forecasts": len(trees),
        "ran": len(ran),
        "folds": sizes,
    }
    return result, winner(differences)


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """Scores with their intervals; None where all forecasts are alike and have no order."""
    estimates = {name: evaluation.scores[name] for name in _KERNEL_SCORES}
    return {
        **{name: finite(each.value) for name, each in estimates.items()},
        "intervals": {
            name: [finite(each.low), finite(each.high)] for name, each in estimates.items()
        },
    }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def losses(answers: Sequence[Answer]) -> dict[str, Floats]:
    """CRPS in log2 and half-Brier over nine bins of kernels that ran."""
    both = []
    for answer in answers:
        density, actual = answer.forecast.distribution, answer.trial.log2_speedup
        assert actual is not None
        happened = DEFAULT_BINS.index(2.0**actual)
        both.append(
            (crps(density, actual), half_brier(density.bin_probabilities(DEFAULT_BINS), happened))
        )
    return dict(zip(("crps", "half_brier"), np.array(both).T, strict=True))


def always(chances: Floats, _query: Query, _measured: Sequence[Observation]) -> Floats:
    """The same chances of every kernel."""
    return chances


class Letters:
    """The chances that a model gives the letters after a prompt."""

    def __init__(self, model: LanguageModel, prompts: Prompts) -> None:
        self._model, self._prompts = model, prompts
        self._ids = [model.first_token(letter) for letter in _OUTCOMES.letters]

    def __call__(self, query: Query, measured: Sequence[Observation]) -> Floats:
        import torch

        (messages,) = self._prompts.of(query, measured)
        tokens = torch.tensor([self._model.prompt_tokens(shortened_prompt(messages))])
        with torch.no_grad():
            logits = self._model.model(tokens, logits_to_keep=1).logits[0, -1, self._ids]
        chances: Floats = torch.softmax(logits.double(), dim=-1).numpy()
        return chances


def shortened_question(question: Question) -> Question:
    return replace(question, messages=shortened_prompt(question.messages))


def shortened_prompt(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last words and signs of the user's message: all prompts begin alike."""
    text = messages[-1]["content"]
    places = [match.start() for match in re.finditer(_WORD, text)]
    return ({"role": "user", "content": text[places[-_READ] :] if len(places) > _READ else text},)


def trained(learnt: Sequence[Question], recipe: Recipe) -> LanguageModel:
    """A new model of the commonest words, trained on the letters."""
    from tokenizers import Regex, pre_tokenizers

    texts = [question.messages[-1]["content"] for question in learnt]
    counts = Counter(word for text in texts for word in re.findall(_WORD, text))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:_WORDS]
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(_WORD), "isolated")]
    )
    model = rewards_small.new_llama(
        words, splitter, recipe.seed, width=_WIDTH, layers=_LAYERS, positions=_READ + 8
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            out=Path(folder),
            steps=recipe.steps,
            batch=recipe.batch,
            at_once=recipe.batch,
            lora=None,
            learning_rate=recipe.learning_rate,
            weight_decay=0.1,
            seed=recipe.seed,
            save_every=10**6,
        )
        log = train(model, learnt, settings)
    print("training loss", [round(entry["loss"], 3) for entry in log[::4]], flush=True)
    model.model.eval()
    return model


def parameters(model: LanguageModel) -> int:
    """The number of weights."""
    return sum(weights.numel() for weights in model.model.parameters())


if __name__ == "__main__":
    main()
