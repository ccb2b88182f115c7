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
Of the prompt that `ask="direct"` sends, the model reads the anchor's speed over the reference, the
first words of each measurement and those of the candidate. The weights of the step with the least
loss on a sixth of the training problems, which are not trained on, are kept; `losses` are the
cross-entropies of the letters there and on training questions. `prior` are the shares of the
outcomes among the training questions. One fold of three is left to choose the model's settings
(--tune), and the other two are reported.

The winner is ahead in both CRPS and half-Brier beyond the 95% interval of the difference, over
spaces (T) or problems (L) drawn with replacement. Otherwise there is none.

    python bench/supervised.py [--quick] [--tune] [--only t|l] [--seed 0] [--work DIR] [--out JSON]
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

_FOLDS, _TUNED_ON, _REPORTED = 3, 0, [1, 2]
_READ_OF_MEASUREMENT, _READ_OF_CANDIDATE = 9, 160  # words and signs
_WORDS = 1500
_WIDTH, _LAYERS = 64, 2
_WATCHED = 6  # one problem in so many is left out of training, to choose the step
_AT_ONCE = 64  # prompts in one pass without training
_KERNEL_SCORES = ("crps", "half_brier", "ece", "auroc_failure", "auroc_gain", "spearman")
_RESAMPLES = 1000
# A line's mark in a difference, the first digit after a point, a word, or a sign.
_WORD = re.compile(r"\n[-+]|(?<=\.)\d|\w+|[^\w\s]")
_NUMBERED = re.compile(r"v\d+")  # a variable, as canonical source names it
_SPEED = re.compile(r"# Anchor: .*?([\d.e+-]+ times as fast as the reference)")


def main() -> None:
    parser = bench_parser(__doc__, quick="few pairs and problems, models of a few steps")
    parser.add_argument("--tune", action="store_true", help="track L on the fold for settings")
    parser.add_argument("--only", choices=("t", "l"), help="one track")
    parser.add_argument("--steps", type=int, default=800, help="training steps on track L")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="on track L")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder that keeps the letters of track T")
    options = parser.parse_args()
    began = time.monotonic()
    recipe = Recipe(steps=options.steps, learning_rate=options.learning_rate, seed=options.seed)
    result: dict[str, Any] = {}
    winners: dict[str, Any] = {}
    if not options.tune and options.only != "l":
        result["track_t"], by_set = track_t(options.seed, options.work, quick=options.quick)
        winners |= {"t": by_set["all"], "t_by_set": by_set}
        print(f"track T: {time.monotonic() - began:.0f} s, {winners}", flush=True)
    if options.only != "t":
        rows = searched_rows(14 if options.quick else None)
        folds, held_out = _FOLDS, [_TUNED_ON] if options.tune else _REPORTED
        if options.quick:
            recipe, folds, held_out = replace(recipe, steps=6), 2, [0]
        result["track_l"], winners["l"] = track_l(rows, folds, held_out, recipe)
    result |= {
        "winner": winners,
        "models": {
            "note": "tiny Llamas from nothing: what two cores can train, not what a 20B reaches",
            "track_l": {"steps": recipe.steps, "learning_rate": recipe.learning_rate},
        },
        "tuned": "track L: on fold 0; the other folds are reported",
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
    looked_every: int = 80


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
        model, course = trained(learnt, recipe)
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
        size = {"fold": number, "questions": len(learnt), "parameters": parameters(model)}
        sizes.append({**size, **course})
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

    def __call__(self, query: Query, measured: Sequence[Observation]) -> Floats:
        (messages,) = self._prompts.of(query, measured)
        chances: Floats = letter_chances(self._model, [shortened_prompt(messages)])[0]
        return chances


def letter_chances(model: LanguageModel, prompts: Sequence[Sequence[Message]]) -> Floats:
    """The chance of each outcome after each of the shortened prompts."""
    import torch

    ids = [model.first_token(letter) for letter in _OUTCOMES.letters]
    texts = [model.tokenizer.apply_chat_template(list(each), tokenize=False) for each in prompts]
    chances = []
    for at in range(0, len(texts), _AT_ONCE):
        inputs = model.tokenizer(
            texts[at : at + _AT_ONCE],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
            return_token_type_ids=False,
        )
        with torch.no_grad():
            logits = model.model(**inputs, logits_to_keep=1).logits[:, -1, ids]
        chances.append(torch.softmax(logits.double(), dim=-1).numpy())
    return np.concatenate(chances)


def letter_loss(model: LanguageModel, asked: Sequence[Question]) -> float:
    """The cross-entropy of the letters, in nats."""
    model.model.eval()
    chances = letter_chances(model, [question.messages for question in asked])
    return float(-np.log([row[q.outcome] for row, q in zip(chances, asked, strict=True)]).mean())


def base_rate_loss(learnt: Sequence[Question], asked: Sequence[Question]) -> float:
    """The cross-entropy of the shares of the outcomes among the questions that are learnt."""
    counts = np.bincount([each.outcome for each in learnt], minlength=_OUTCOMES.count) + 0.5
    return float(-np.log(counts / counts.sum())[[each.outcome for each in asked]].mean())


def shortened_question(question: Question) -> Question:
    return replace(question, messages=shortened_prompt(question.messages))


def shortened_prompt(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The anchor's speed, and the first words of each measurement and of the candidate.

    The anchor's own code is left out. All numbered variables are one word.
    """
    text = messages[-1]["content"]
    before, _, candidate = text.rpartition("# Candidate\n")
    _, _, measured = before.rpartition("# Measured in this run\n")
    speed = _SPEED.search(text)
    words = _WORD.findall(speed[1]) if speed else []
    for line in measured.strip().splitlines():
        words += _WORD.findall(f"\n{line}")[:_READ_OF_MEASUREMENT]
    words += _WORD.findall(candidate)[:_READ_OF_CANDIDATE]
    read = " ".join("v" if _NUMBERED.fullmatch(word) else word for word in words)
    return ({"role": "user", "content": read},)


def trained(learnt: Sequence[Question], recipe: Recipe) -> tuple[LanguageModel, dict[str, Any]]:
    """A new model of the commonest words with its best weights, and the course of its training.

    The best are those with the least loss on problems that are not trained on.
    """
    names = sorted({question.problem for question in learnt})
    shuffled = np.random.default_rng(recipe.seed).permutation(names)
    watched_names = set(shuffled[: max(len(names) // _WATCHED, 1)].tolist())
    watched = [question for question in learnt if question.problem in watched_names]
    taught = [question for question in learnt if question.problem not in watched_names]
    shown = taught[: len(watched)]
    model = new_model(taught, recipe.seed)
    course: list[dict[str, float]] = []
    best: dict[str, Any] = {}

    def look(step: int) -> None:
        if step % recipe.looked_every and step != recipe.steps:
            return
        loss = letter_loss(model, watched)
        if not course or loss < min(entry["new_problems"] for entry in course):
            best.update(copy.deepcopy(model.model.state_dict()))
        course.append({"step": step, "training": letter_loss(model, shown), "new_problems": loss})
        print(course[-1], f"{time.process_time():.0f} CPU s", flush=True)
        model.model.train()

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
        train(model, taught, settings, on_step=look)
    model.model.load_state_dict(best)
    model.model.eval()
    base_rates = {
        "training": base_rate_loss(taught, shown),
        "new_problems": base_rate_loss(taught, watched),
    }
    kept = min(course, key=lambda entry: entry["new_problems"])
    return model, {"losses": {"base_rates": base_rates, "kept": kept, "last": course[-1]}}


def new_model(learnt: Sequence[Question], seed: int) -> LanguageModel:
    """A model of the commonest words of the shortened prompts, before any training."""
    from tokenizers import Regex, pre_tokenizers

    pattern = r"\n?\S+"
    texts = [question.messages[-1]["content"] for question in learnt]
    counts = Counter(word for text in texts for word in re.findall(pattern, text))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:_WORDS]
    splitter = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    positions = 2 * _READ_OF_CANDIDATE  # more than the longest prompt and its answer
    return rewards_small.new_llama(
        words, splitter, seed, width=_WIDTH, layers=_LAYERS, positions=positions
    )


def parameters(model: LanguageModel) -> int:
    """The number of weights."""
    return sum(weights.numel() for weights in model.model.parameters())


if __name__ == "__main__":
    main()
