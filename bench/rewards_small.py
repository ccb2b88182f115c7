"""Do calibrated rewards make a small model a better forecaster? On tuner pairs of real GPUs.

A Llama of about 40,000 parameters learns from nothing which of nine bins of speedup a configuration
falls into against another one of the same space. Its supervised letters (`ask="direct"`) need no
reinforcement learning. Warm starts write what the letters say in digits, but surer than they should
be, by a factor drawn at random. GRPO then trains them with each reward. Base rates by problem need
no model: the shares of the bins among the trained pairs of a problem (of all, for a new problem).

Judged are other GPUs than those trained on (A100, RTX 3090, W7800), and problems that no model has
seen (`set_of`: each by itself). With --tune, other GPUs are judged, on which settings were chosen
(TITAN RTX, W6600), by models that were trained without both. `crps` is the ranked probability score
over the bins, and `distinct` counts the different forecasts. Intervals are 95%, over problems.

`reproduced` names the calibrated rewards that beat correctness and base rates by problem in CRPS
and half-Brier beyond the interval, with an AURC below their own error rate and a Spearman no worse
than that of their warm starts.

    python bench/rewards_small.py [--quick] [--tune] [--steps 600] [--seeds 5] [--work DIR]

Results are appended to the work folder, one line a run: an interrupted bench goes on.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from _data import Floats, Space, tuner_spaces
from _result import bench_parser, json_lines, report, rounded
from kernelcast.dataset.keys import problem_group
from kernelcast.outcomes import CAUSES, Outcomes
from kernelcast.processes import workers
from kernelcast.scoring import (
    aurc,
    expected_calibration_error,
    half_brier,
    ordinal_crps,
    spearman,
)
from kernelcast.training import grpo, supervised
from kernelcast.training.language_model import LanguageModel
from kernelcast.training.pairs import Question
from kernelcast.training.rewards import Reward

ARMS = ("correctness", "brier", "crps")
WARM_STARTS = 2
SHOWN = ("A100", "RTX 3090", "W7800")
TUNED_ON = ("TITAN RTX", "W6600")
UNSEEN = ("pnpoly", "expdist", "hotspot")
"""Problems that no model is trained on, by what their names contain."""
THOSE = ("hub/gemm", "hub/convolution_milo(4096x4096,15x15)", "hub/dedispersion_milo(25000x2048)")
"""The problems of the pairs for which the bars of the supervised letters are stated."""

Ask = Callable[[Sequence["Pair"]], Floats]
"""The chance of each outcome of each pair."""

_OUTCOMES = Outcomes()
_BINS = _OUTCOMES.bins
_LETTER_STEPS, _WARM_STEPS = 1500, 800  # of 64 pairs each, none of them twice
_COUNTED, _REWARDED = 96_000, 16_000  # pairs for base rates, and for one run of GRPO
_JUDGED = 150  # pairs of each space
_SHARPER = (1.0, 2.0, 4.0, 8.0)  # how much surer than the letters a warm start writes

_RESAMPLES = 1000
_WIDTH, _LAYERS = 32, 2


@dataclass(frozen=True, eq=False)
class Pair:
    """Two configurations of one space."""

    space: Space
    anchor: int
    candidate: int

    @property
    def log2_speedup(self) -> float:
        times = self.space.runtime_ms
        return math.log2(times[self.anchor] / times[self.candidate])

    def prompt(self) -> str:
        """Words: the problem, and each parameter's value of the anchor and of the candidate."""
        before = self.space.configurations[self.anchor]
        after = self.space.configurations[self.candidate]
        words = [problem_group(self.space.problem)]
        for name in self.space.parameters:
            words += [f"{name}={before[name]}", f"{name}>{after[name]}"]
        return " ".join(word.replace(" ", "_") for word in words)

    def question(self, answer: str = "") -> Question:
        outcome = _OUTCOMES.index(None, self.log2_speedup)
        assert outcome is not None
        return Question(
            messages=({"role": "user", "content": self.prompt()},),
            outcome=outcome,
            answer=answer or _OUTCOMES.letters[outcome],
            problem=self.space.problem,
            device=self.space.gpu,
        )


# ---------------------------------------------------------------------------------- pairs


def _is_judged(space: Space, gpus: Sequence[str]) -> bool:
    return any(gpu in space.gpu for gpu in gpus)


def _is_unseen(space: Space) -> bool:
    return any(name in space.problem for name in UNSEEN)


@cache
def spaces() -> tuple[Space, ...]:
    return tuple(tuner_spaces())


def trained_spaces(*, tune: bool) -> list[Space]:
    """Spaces of problems and GPUs that no arm is judged on; while tuning, of fewer GPUs."""
    hidden = (*SHOWN, *TUNED_ON) if tune else SHOWN
    return [space for space in spaces() if not _is_judged(space, hidden) and not _is_unseen(space)]


def judged_spaces(*, tune: bool) -> dict[str, list[Space]]:
    """By what is new of them: GPUs on known problems, and problems."""
    if tune:
        gpus = [s for s in spaces() if _is_judged(s, TUNED_ON) and not _is_unseen(s)]
        return {"gpus": gpus}
    known = {problem_group(space.problem) for space in trained_spaces(tune=tune)}
    new = [space for space in spaces() if problem_group(space.problem) not in known]
    gpus = [s for s in spaces() if _is_judged(s, SHOWN) and s not in new]
    return {"gpus": gpus, "problems": new}


def drawn(chosen: Sequence[Space], each: int, seed: int) -> list[Pair]:
    """As many pairs of each space: half as they come, half evenly over the bins.

    Anchors are of the faster half, as in a search.
    """
    pairs = []
    for number, space in enumerate(chosen):
        rng = np.random.default_rng([seed, number])
        ran = np.flatnonzero(np.isfinite(space.runtime_ms))
        times = space.runtime_ms[ran]
        fast = np.flatnonzero(times <= np.median(times))
        anchor, candidate = rng.choice(fast, 4 * each), rng.integers(len(ran), size=4 * each)
        bins = _BINS.indices(times[anchor] / times[candidate])
        even = 1.0 / np.bincount(bins, minlength=_BINS.count)[bins]
        half = rng.choice(4 * each, each // 2, replace=False, p=even / even.sum())
        other = rng.choice(4 * each, each - each // 2, replace=False)
        pairs += [
            Pair(space, int(ran[anchor[at]]), int(ran[candidate[at]])) for at in (*half, *other)
        ]
    return pairs


def trained_pairs(count: int, seed: int, *, tune: bool) -> list[Pair]:
    chosen = trained_spaces(tune=tune)
    return drawn(chosen, count // len(chosen), seed)


# --------------------------------------------------------------------------------- models


def new_model(seed: int) -> LanguageModel:
    """A Llama and a tokenizer of one token a word, before any training."""
    from tokenizers import pre_tokenizers

    words = {word for pair in drawn(spaces(), 400, seed=0) for word in pair.prompt().split(" ")}
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("\u200b", "removed")]
    )
    return new_llama(sorted(words), splitter, seed, width=_WIDTH, layers=_LAYERS, positions=128)


def new_llama(
    words: Sequence[str], splitter: Any, seed: int, *, width: int, layers: int, positions: int
) -> LanguageModel:
    """A Llama that knows the letters, the digits and these words, before any training."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    known = ["<pad>", "<eos>", "<unk>", *_OUTCOMES.letters, *"0123456789", *words]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(known))}
    inner = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    inner.pre_tokenizer = splitter
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(numbers),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=3 * width,
        max_position_embeddings=positions,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
        tie_word_embeddings=True,
    )
    return LanguageModel(LlamaForCausalLM(config), tokenizer)


def opened(folder: Path) -> LanguageModel:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return LanguageModel(
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
        AutoTokenizer.from_pretrained(folder),
    )


def letters(model: LanguageModel, pairs: Sequence[Pair]) -> Floats:
    """The chance of each outcome, as `direct` reads it."""
    import torch

    ids = [model.first_token(letter) for letter in _OUTCOMES.letters]
    chances = []
    for batch in _batches(pairs):
        inputs = _inputs(model, batch)
        with torch.no_grad():
            logits = model.model(**inputs).logits[:, -1, ids]
        chances.append(torch.softmax(logits.double(), dim=-1).numpy())
    return np.concatenate(chances)


def digits(model: LanguageModel, pairs: Sequence[Pair]) -> list[str]:
    """The likeliest answer to each pair, in digits."""
    import torch

    texts: list[str] = []
    for batch in _batches(pairs):
        inputs = _inputs(model, batch)
        with torch.no_grad():
            written = model.model.generate(
                **inputs, max_new_tokens=_OUTCOMES.count + 2, do_sample=False, pad_token_id=0
            )
        answers = written[:, inputs["input_ids"].shape[1] :]
        texts += model.tokenizer.batch_decode(answers, skip_special_tokens=True)
    return texts


def _batches(pairs: Sequence[Pair]) -> list[Sequence[Pair]]:
    return [pairs[at : at + 512] for at in range(0, len(pairs), 512)]


def _inputs(model: LanguageModel, batch: Sequence[Pair]) -> Any:
    prompts = [pair.prompt() + " " for pair in batch]
    return model.tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)


# ------------------------------------------------------------------------------------ runs


def train_letters(base: Base, steps: int) -> None:
    """The supervised letters, from nothing."""
    pairs = trained_pairs(64 * steps, 10 + base.number, tune=base.tune)
    settings = base.settings(base.letters, steps, learning_rate=4e-3)
    supervised.train(new_model(base.number), [pair.question() for pair in pairs], settings)


def warm_start(base: Base, steps: int) -> None:
    """Answers in digits that are surer than they should be, by a factor drawn at random."""
    pairs = trained_pairs(64 * steps, 20 + base.number, tune=base.tune)
    rng = np.random.default_rng([base.number, 3])
    sharper = rng.choice(_SHARPER, len(pairs))
    chances = letters(opened(base.letters), pairs) ** sharper[:, None]
    questions = [
        pair.question(" ".join(_OUTCOMES.digits(row)))
        for pair, row in zip(pairs, chances, strict=True)
    ]
    settings = base.settings(base.warm, steps, learning_rate=2e-3)
    supervised.train(opened(base.letters), questions, settings)


def reinforce(job: Job) -> dict[str, Any]:
    """Train a warm start with a reward, and judge it."""
    pairs = trained_pairs(_REWARDED, 100 + job.seed, tune=job.tune)
    questions = [pair.question() for pair in pairs]
    np.random.default_rng(job.seed).shuffle(questions)
    model = opened(job.warm_folder)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        settings = grpo.Settings(
            out=Path(folder),
            steps=job.steps,
            prompts=job.prompts,
            rollouts=job.rollouts,
            at_once=job.prompts * job.rollouts,
            learning_rate=job.learning_rate,
            max_output_tokens=_OUTCOMES.count + 2,
            lora=None,
            seed=job.seed,
            save_every=10**6,
        )
        log = grpo.train(model, questions, Reward.named(job.arm), settings)
    judged = judged_digits(model, tune=job.tune)
    finite = all(math.isfinite(value) for entry in log for value in entry.values())
    return {
        "arm": job.arm,
        "warm": job.warm,
        "seed": job.seed,
        "finite": finite,
        "cpu_s": round(time.process_time() - began, 1),
        "reward": [round(entry["reward"], 4) for entry in log],
        "judged": judged,
    }


@dataclass(frozen=True)
class Job:
    """One run of GRPO."""

    arm: str
    warm: int
    seed: int
    warm_folder: Path
    steps: int
    tune: bool
    prompts: int = 16
    rollouts: int = 8
    learning_rate: float = 2e-3


# --------------------------------------------------------------------------------- scores


def judged_digits(model: LanguageModel, *, tune: bool) -> dict[str, Any]:
    def ask(pairs: Sequence[Pair]) -> Floats:
        read = [_OUTCOMES.read_digits(text) for text in digits(model, pairs)]
        uniform = (1.0 / _OUTCOMES.count,) * _OUTCOMES.count
        return np.array([uniform if one is None else one.chances for one in read])

    return judged(ask, tune=tune)


def judged_letters(model: LanguageModel, *, tune: bool) -> dict[str, Any]:
    return judged(lambda pairs: letters(model, pairs), tune=tune)


def judged(ask: Ask, *, tune: bool, each: int = _JUDGED) -> dict[str, Any]:
    """Scores over each set of spaces, over all, and over the pairs that bars are stated for."""
    sets = {name: drawn(chosen, each, 1) for name, chosen in judged_spaces(tune=tune).items()}
    chances = {name: ask(pairs) for name, pairs in sets.items()}
    everything = [pair for pairs in sets.values() for pair in pairs]
    together = np.concatenate(list(chances.values()))
    those = np.array([pair.space.problem in THOSE for pair in everything])
    chosen = [pair for pair, one in zip(everything, those, strict=True) if one]
    return {
        **{name: scores(pairs, chances[name]) for name, pairs in sets.items()},
        "those": scores(chosen, together[those]),
        "all": scores(everything, together),
    }


def base_rates(*, tune: bool) -> Ask:
    """Answer with the shares of the bins among the training pairs of a problem, or among all."""
    pairs = trained_pairs(_COUNTED, 10, tune=tune)
    counts: dict[str, Floats] = {}
    for pair in pairs:
        for key in (problem_group(pair.space.problem), pair.space.problem, ""):
            counts.setdefault(key, np.zeros(_OUTCOMES.count))[pair.question().outcome] += 1

    def ask(asked: Sequence[Pair]) -> Floats:
        keys = [(pair.space.problem, problem_group(pair.space.problem), "") for pair in asked]
        return np.array([next(counts[key] for key in names if key in counts) for names in keys])

    return ask


def scores(pairs: Sequence[Pair], chances: Floats) -> dict[str, Any]:
    """Scores over the bins given success, with the two proper ones by space for intervals."""
    runs = chances[:, len(CAUSES) :] + 1e-12
    runs = runs / runs.sum(axis=1, keepdims=True)
    happened = np.array([pair.question().outcome for pair in pairs]) - len(CAUSES)
    right = runs.argmax(axis=1) == happened
    confidence = runs.max(axis=1)
    losses = {
        "crps": np.array([ordinal_crps(p, y) for p, y in zip(runs, happened, strict=True)]),
        "half_brier": np.array([half_brier(p, y) for p, y in zip(runs, happened, strict=True)]),
    }
    expected = runs @ np.arange(_BINS.count)
    actual = np.array([pair.log2_speedup for pair in pairs])
    where = np.array([f"{pair.space.problem} | {pair.space.gpu}" for pair in pairs])
    each = {name: where == name for name in sorted(set(where))}
    ranked = [spearman(expected[own], actual[own]) for own in each.values()]
    return {
        **{name: float(values.mean()) for name, values in losses.items()},
        "ece": expected_calibration_error(confidence, right),
        "aurc": aurc(confidence, ~right),
        "error": float(1.0 - right.mean()),
        "spearman": float(np.mean([value if math.isfinite(value) else 0.0 for value in ranked])),
        "distinct": len({tuple(np.round(row, 3)) for row in runs}),
        "asked": len(pairs),
        "by_space": {
            name: {loss: round(float(values[own].mean()), 5) for loss, values in losses.items()}
            for name, own in each.items()
        },
    }


# --------------------------------------------------------------------------------- the bench


def main() -> None:
    parser = bench_parser(__doc__, quick="3 steps, one seed, one warm start, small training")
    parser.add_argument("--tune", action="store_true", help="judge the GPUs for choosing settings")
    parser.add_argument("--steps", type=int, default=600, help="steps of GRPO")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm and warm start")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, help="folder that keeps what is done")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        warm_starts = 1 if options.quick else WARM_STARTS
        seeds, steps = (1, 3) if options.quick else (options.seeds, options.steps)
        bases = [
            Base(work / f"base{number}", number, options.tune, quick=options.quick)
            for number in range(warm_starts)
        ]
        jobs = [
            Job(arm, base.number, seed, base.warm, steps, options.tune)
            for seed in range(seeds)
            for arm in ARMS
            for base in bases
        ]
        with workers(options.jobs) as pool:
            begun = list(pool.map(prepare, bases))
            runs = done(pool, jobs, work / "runs.jsonl")
    rates = judged(base_rates(tune=options.tune), tune=options.tune)
    result = summary(rates, begun, runs)
    result |= {
        "warm_starts": warm_starts,
        "seeds": seeds,
        "steps": steps,
        "tune": options.tune,
        "cpu_s": round(sum(run["cpu_s"] for run in runs) + sum(one["cpu_s"] for one in begun)),
        "seconds": round(time.monotonic() - began, 1),
    }
    report(result, options, "torch", "transformers", "trl")


@dataclass(frozen=True)
class Base:
    """The supervised letters of one seed, and the warm start made of them."""

    folder: Path
    number: int
    tune: bool
    quick: bool

    @property
    def letters(self) -> Path:
        return self.folder / "letters"

    @property
    def warm(self) -> Path:
        return self.folder / "warm"

    def settings(self, out: Path, steps: int, learning_rate: float) -> supervised.Settings:
        """Settings of supervised training of all weights, saved at its end alone."""
        return supervised.Settings(
            out=out,
            steps=steps,
            lora=None,
            learning_rate=learning_rate,
            seed=self.number,
            save_every=10**6,
        )


def prepare(base: Base) -> dict[str, Any]:
    """Train both models, unless they are there, and judge them."""
    began = time.process_time()
    steps = (200, 200) if base.quick else (_LETTER_STEPS, _WARM_STEPS)
    for folder, train, count in zip(
        (base.letters, base.warm), (train_letters, warm_start), steps, strict=True
    ):
        if not (folder / "tokenizer.json").exists():
            train(base, count)
    return {
        "supervised": judged_letters(opened(base.letters), tune=base.tune),
        "warm": judged_digits(opened(base.warm), tune=base.tune),
        "cpu_s": time.process_time() - began,
    }


def done(pool: Any, jobs: Sequence[Job], file: Path) -> list[dict[str, Any]]:
    """The results of all jobs; those that the file holds are not run again."""
    runs = {(run["arm"], run["warm"], run["seed"]): run for run in json_lines(file)}
    left = [job for job in jobs if (job.arm, job.warm, job.seed) not in runs]
    for future in as_completed([pool.submit(reinforce, job) for job in left]):
        run = future.result()
        runs[run["arm"], run["warm"], run["seed"]] = run
        with file.open("a") as log:
            log.write(json.dumps(run) + "\n")
        told = {name: round(run["judged"]["all"][name], 4) for name in ("crps", "half_brier")}
        print(f"{len(runs)} of {len(jobs)}: {run['arm']} {run['warm']} {run['seed']} {told}")
    return [runs[job.arm, job.warm, job.seed] for job in jobs]


_FIGURES = ("crps", "half_brier", "ece", "aurc", "error", "spearman", "distinct")


def summary(
    rates: dict[str, Any], begun: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Means over the runs of each arm, with intervals, and whether the claim was reproduced."""
    judged: dict[str, list[dict[str, Any]]] = {
        "base_rates": [rates],
        "supervised": [base["supervised"] for base in begun],
        "warm": [base["warm"] for base in begun],
        **{arm: [run["judged"] for run in runs if run["arm"] == arm] for arm in ARMS},
    }
    result: dict[str, Any] = {
        "finite": all(run["finite"] for run in runs),
        **{name: _mean(sets, "all") for name, sets in judged.items()},
        "set_of": {
            name: {kind: _mean(sets, kind) for kind in sets[0] if kind != "all"}
            for name, sets in judged.items()
        },
    }
    result["differences"] = {
        arm: {other: _difference(judged[arm], judged[other]) for other in _RIVALS}
        for arm in ("brier", "crps")
    }
    result["reproduced"] = [
        arm
        for arm, rivals in result["differences"].items()
        if all(interval[1] < 0.0 for other in rivals.values() for interval in other.values())
        and result[arm]["aurc"] < result[arm]["error"]
        and result[arm]["spearman"] >= result["warm"]["spearman"]
    ]
    checked: dict[str, Any] = rounded(result)
    return checked


_RIVALS = ("correctness", "base_rates")


def _mean(sets: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        name: float(np.mean([one[kind][name] for one in sets])) for name in _FIGURES
    }
    spread = [one[kind]["crps"] for one in sets]
    result |= {"runs": len(sets), "crps_spread": [min(spread), max(spread)]}
    for loss in ("crps", "half_brier"):
        by_problem = _by_problem(sets, kind, loss)
        result[f"{loss}_interval"] = _interval([float(np.mean(v)) for v in by_problem.values()])
    return result


def _by_problem(sets: Sequence[dict[str, Any]], kind: str, loss: str) -> dict[str, list[float]]:
    """The loss in each space, mean over runs, by problem."""
    problems: dict[str, list[float]] = {}
    for space in sets[0][kind]["by_space"]:
        values = [one[kind]["by_space"][space][loss] for one in sets]
        problems.setdefault(problem_group(space.partition(" | ")[0]), []).append(
            float(np.mean(values))
        )
    return problems


def _difference(
    mine: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]
) -> dict[str, list[float]]:
    """The interval of each loss less that of another arm; below 0 is better."""
    result = {}
    for loss in ("crps", "half_brier"):
        ours, theirs = (_by_problem(sets, "all", loss) for sets in (mine, other))
        result[loss] = _interval(
            [float(np.mean(np.subtract(ours[name], theirs[name]))) for name in ours]
        )
    return result


def _interval(values: Sequence[float]) -> list[float]:
    """95% of the means of problems drawn with replacement."""
    drawn_means = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values))).mean(axis=1)
    return [float(value) for value in np.quantile(drawn_means, [0.025, 0.975])]


if __name__ == "__main__":
    main()
