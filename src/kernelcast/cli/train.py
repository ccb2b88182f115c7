"""Commands that train forecasters: trees and language models, from rows of measured kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from shutil import rmtree
from typing import Any, get_args

import click
from rich.progress import Progress

from kernelcast import dataset
from kernelcast.bins import BINS
from kernelcast.cli.common import (
    ANY_PATH,
    ERR,
    FOLDER,
    OUT,
    POSITIVE,
    json_option,
    option,
    store_option,
)
from kernelcast.errors import SetupError
from kernelcast.forecasters._prompts import Way
from kernelcast.forecasters._source import SHIPPED, SourceModel
from kernelcast.judge.evaluation import SCORES, Evaluation, evaluate
from kernelcast.report.tables import Report, table
from kernelcast.store import Store
from kernelcast.training import (
    check_publishable,
    cross_validate,
    grpo,
    supervised,
    train_source_model,
)
from kernelcast.training.export import ExportDtype, adapter_command, export_gguf, export_merged
from kernelcast.training.language_model import LanguageModel, Lora
from kernelcast.training.memory import Need, configuration, configurations, needs
from kernelcast.training.pairs import Question, questions
from kernelcast.training.recipe import Recipe
from kernelcast.training.refresh import Compared, refresh_language_model, refresh_trees
from kernelcast.training.rewards import REWARDS, Asked

_ROWS, _CARD = "rows.parquet", "card.md"
_rows_argument = click.argument(
    "rows", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
_seed_option = option("--seed", "Seed of every random choice.", int, 0)


@click.group()
def train() -> None:
    """Train a forecaster on rows of measured kernels (Parquet files).

    \b
    Examples:
      kernelcast train trees rows.parquet --out my_model
      kernelcast train supervised rows.parquet --base my_llm/ --out tuned
      kernelcast train export tuned --format gguf --out tuned.gguf

    Language models need the extra `train`: pip install 'kernelcast[train]'.
    """


# -------------------------------------------------------------------------------------- trees


@train.command("trees")
@_rows_argument
@option("--out", "Folder for the model, its rows and its card.", FOLDER, Path("model"))
@_seed_option
@json_option
def train_trees(rows: tuple[Path, ...], out: Path, seed: int, as_json: bool) -> None:
    """Train the trees for written kernels on ROWS (Parquet files of measured kernels).

    Writes the model, the rows that it learnt from, and a card that says how well it does on
    problems it has not seen. Rows without a stated licence are refused, and so is what was
    published for evaluation only. Takes minutes.

    \b
    Example:
      kernelcast data import kernelbench runs/my_run --licence MIT --out rows.parquet
      kernelcast train trees rows.parquet --out my_model
      kernelcast rank kernels/ --trees my_model/model.json.zst
    """
    learnt = _read(rows)
    check_publishable(learnt)
    with ERR.status(
        f"training on {learnt.num_rows:,} rows, then on five parts of them for the card"
    ):
        model = train_source_model(learnt, seed)
        answers = [a for fold in cross_validate(learnt, seed=seed) for a in fold.searched()]
    command = f"kernelcast train trees {' '.join(path.name for path in rows)} --seed {seed}"
    _write_trees(out, model, learnt, evaluate(answers), command)
    path, size = out / SHIPPED, (out / SHIPPED).stat().st_size
    if as_json:
        click.echo(json.dumps({"model": str(path), "bytes": size, "card": str(out / _CARD)}))
        return
    OUT.print(f"{path}: {size / 1e6:.1f} MB; what it is worth: {out / _CARD}")


@train.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@store_option
@option("--licence", "Licence of the kernels in the store.", default="unstated")
@option("--steps", "Steps of a language model.  [default: each question once]", POSITIVE)
@_seed_option
@json_option
def refresh(
    model: Path, store: str, licence: str, steps: int | None, seed: int, as_json: bool
) -> None:
    """Fold the newest runs of the store into MODEL, a folder that another command has trained.

    MODEL is replaced only if the CRPS falls on problems of the new runs that are held out. For
    trees, two models are trained without these problems, with and without the other new runs. A
    language model goes on learning on the other new runs; the one that it replaces is kept in
    MODEL-before. Takes minutes for trees.

    \b
    Examples:
      kernelcast train refresh my_model --licence MIT
      kernelcast train refresh tuned
    """
    if not (model / _ROWS).is_file():
        raise SetupError(
            f"{model} holds no {_ROWS}: make it by `kernelcast train trees` or `train supervised`"
        )
    old = dataset.read_rows(model / _ROWS)
    new = _new_rows(store, old, licence)
    if (model / SHIPPED).is_file():
        result, swapped = _refresh_trees(model, old, new, seed)
    else:
        result, swapped = _refresh_language_model(model, old, new, steps, seed)
    compared = {"before": result.before, "after": result.after}
    crps = {name: judged.scores["crps"].value for name, judged in compared.items()}
    unread = {name: judged.unparsed for name, judged in compared.items()}
    if as_json:
        facts = {"new_rows": new.num_rows, "crps": crps, "unread": unread, "swapped": swapped}
        click.echo(json.dumps(facts))
        return
    verdict = "replaced" if swapped else "kept: the new rows do not help"
    OUT.print(
        f"{new.num_rows:,} new rows; CRPS on held-out problems of them: {crps['before']:.4f} "
        f"without them, {crps['after']:.4f} with them\n{model}: {verdict}"
    )
    if any(unread.values()):
        OUT.print(
            f"of {result.after.forecasts:,} answers, {unread['before']:,} without the new rows and "
            f"{unread['after']:,} with them could not be read: a prompt is longer than "
            "--max-tokens was in training, or the model has not learnt the form of an answer"
        )


def _refresh_trees(
    model: Path, old: dataset.Rows, new: dataset.Rows, seed: int
) -> tuple[Compared, bool]:
    check_publishable(new)
    with ERR.status(f"training with and without {new.num_rows:,} new rows"):
        result = refresh_trees(old, new, seed)
    if result.model is not None:
        everything = dataset.concatenate([old, new])
        command = f"kernelcast train refresh {model.name} --seed {seed}"
        _write_trees(model, result.model, everything, result.after, command)
    return result, result.model is not None


def _refresh_language_model(
    model: Path, old: dataset.Rows, new: dataset.Rows, steps: int | None, seed: int
) -> tuple[Compared, bool]:
    if Recipe.read(model).ships:
        check_publishable(new)
    out, before = _beside(model, "-refreshed"), _beside(model, "-before")
    rmtree(out, ignore_errors=True)
    with _progress() as on_progress:
        result = refresh_language_model(
            model, old, new, out, steps=steps, seed=seed, on_progress=on_progress
        )
    if result.is_better:
        dataset.write_rows(out / _ROWS, dataset.concatenate([old, result.learnt]))
        rmtree(before, ignore_errors=True)
        model.rename(before)
        out.rename(model)
    else:
        rmtree(out)
    return result, result.is_better


def _read(paths: Sequence[Path]) -> dataset.Rows:
    return dataset.concatenate([dataset.read_rows(path) for path in paths])


def _new_rows(store: str, old: dataset.Rows, licence: str) -> dataset.Rows:
    """Rows of the runs that the model has not learnt from."""
    known = set(old["search_id"].to_pylist())
    tables = []
    with Store.open(store, create=False) as opened:
        for info in opened.runs():
            run = opened.open_run(info.name)
            if info.name not in known and run.state.made_by == "search":
                tables.append(dataset.export_run(run, licence=licence))
    new = [rows for rows in tables if rows.num_rows]
    if not new:
        raise SetupError(f"every run in {store} is in the model already: there is nothing to learn")
    return dataset.concatenate(new)


def _write_trees(
    out: Path, model: SourceModel, learnt: dataset.Rows, judged: Evaluation, command: str
) -> None:
    """Write model, rows and card; the model comes last, so that no reader sees half of them."""
    out.mkdir(parents=True, exist_ok=True)
    dataset.write_rows(out / _ROWS, learnt)
    licences = ", ".join(sorted(set(learnt["licence"].to_pylist())))
    (out / _CARD).write_text(
        f"""# A source model of kernelcast

Made by `{command}` from {learnt.num_rows:,} rows: {model.header.trained_on}.
Licences: {licences}.

{judged.kernels:,} kernels of {judged.groups:,} problems, {judged.timed:,} of them timed, were
forecast along their searches by models that had not seen the problem (95% intervals over problems).
On other operators, languages and devices than these, do not trust the model.

| score | value | meaning |
| --- | --- | --- |
"""
        + "".join(f"| {name} | {judged.scores[name]} | {what} |\n" for name, what in SCORES.items())
    )
    model.save(out / f"{SHIPPED}.new")
    (out / f"{SHIPPED}.new").replace(out / SHIPPED)


# ---------------------------------------------------------------------------- language models


def _recipe_options(command: Any) -> Any:
    """The options that both recipes share."""
    shared = (
        option("--base", "Model to begin with: a folder, a .gguf file, or a name on the hub."),
        option("--out", "Folder for the adapter and its checkpoints.", FOLDER, Path("tuned")),
        option(
            "--configuration",
            "Settings by name; other options override them.",
            click.Choice(tuple(configurations())),
        ),
        option("--limit", "Number of questions, spread over problems and devices.", POSITIVE),
        option("--bins", "Speedup bins.", click.Choice(tuple(BINS)), "default"),
        option("--steps", "Steps of the optimiser.", POSITIVE),
        option("--learning-rate", "Learning rate.", click.FloatRange(min=0.0, min_open=True)),
        option("--rank", "Rank of the adapter; 0 trains all weights.", click.IntRange(min=0)),
        option("--max-tokens", "Longest prompt; longer ones are left out.", POSITIVE),
        option("--ships", "Refuse rows that no model which ships may learn from.", bool),
        option("--dry-run", "Print the memory that each GPU needs, and train nothing.", bool),
        _seed_option,
        json_option,
    )
    for add in reversed(shared):
        command = add(command)
    return _rows_argument(command)


@train.command("supervised")
@_recipe_options
@option(
    "--ask",
    "How the model will be asked; digits teaches the form of an answer alone.",
    click.Choice(("direct", "digits")),
    "direct",
)
@option("--loss", "What is minimised.", click.Choice(get_args(supervised.Loss)), "cross_entropy")
def train_supervised(ask: Way, loss: supervised.Loss, **options: Any) -> None:
    """Train a language model to answer with the letter of what happened (--ask direct).

    The prompts are those of `kernelcast eval --forecaster llm` on ROWS. An interrupted training
    goes on from its last checkpoint. Nothing here has run on a GPU yet.

    \b
    Examples:
      kernelcast train supervised rows.parquet --base SmolLM2/ --configuration 135m-cpu
      kernelcast train supervised rows.parquet --configuration 20b-one-80gb --dry-run
    """
    settings = _settings(supervised.Settings, "supervised", options, loss=loss)
    _follow(settings, options, ask=ask)


@train.command("grpo")
@_recipe_options
@option("--ask", "How the model answers.", click.Choice(get_args(Asked)), "digits")
@option("--prompts", "Questions of a step.", POSITIVE)
@option("--rollouts", "Answers to each question.", click.IntRange(min=2))
@option("--reward", "What an answer earns.", click.Choice(tuple(REWARDS)), "crps")
def train_grpo(ask: Asked, reward: str, **options: Any) -> None:
    """Train a language model by reinforcement learning, with a reward that is a proper score.

    The model should already answer in the form that is asked for. An interrupted training goes on
    from its last checkpoint. Nothing here has run on a GPU yet; that it makes better forecasts than
    `train supervised` was not shown (docs/benchmarks.md).

    \b
    Examples:
      kernelcast train grpo rows.parquet --base tuned/ --reward brier --out rewarded
      kernelcast train grpo rows.parquet --configuration 20b-eight-80gb --dry-run
    """
    _follow(_settings(grpo.Settings, "grpo", options), options, ask=ask, reward=reward)


@train.command("export")
@click.argument("trained", type=click.Path(exists=True, file_okay=False, path_type=Path))
@option(
    "--format form",
    "merged: a folder of safetensors. gguf: one file for llama.cpp. adapter: nothing is written, "
    "and vLLM's command is printed.",
    click.Choice(("merged", "gguf", "adapter")),
    "merged",
)
@option("--out", "Folder or file to write.  [default: beside TRAINED]", ANY_PATH)
@option("--base", "What the adapter was trained on, if it was moved.")
@option("--dtype", "Type of the weights.", click.Choice(get_args(ExportDtype)))
@json_option
def train_export(
    trained: Path, form: str, out: Path | None, base: str | None, dtype: Any, as_json: bool
) -> None:
    """Export TRAINED, a folder that a recipe wrote, so that a server can serve it.

    \b
    Examples:
      kernelcast train export tuned --format gguf --out tuned.gguf
      kernelcast train export tuned --format adapter
      kernelcast search softmax --forecaster llm --ask direct \\
          --base-url http://localhost:8000/v1 --model tuned
    """
    options: dict[str, Any] = {"base": base, **({"dtype": dtype} if dtype else {})}
    if form == "adapter":
        command = adapter_command(trained, base)
        click.echo(json.dumps({"command": command}) if as_json else command)
        return
    write, ending = (export_gguf, ".gguf") if form == "gguf" else (export_merged, "-merged")
    with ERR.status(f"writing {form}"):
        path = write(trained, out or _beside(trained, ending), **options)
    served = (
        f"llama-server -m {path} -c 8192 --port 8000"
        if form == "gguf"
        else f"vllm serve {path} --port 8000"
    )
    if as_json:
        click.echo(json.dumps({"out": str(path), "served_by": served}))
        return
    OUT.print(
        f"{path}: serve it, for example by `{served}`, and ask it with "
        "`--forecaster llm --ask direct --base-url http://localhost:8000/v1`"
    )


def _beside(folder: Path, ending: str) -> Path:
    whole = folder.resolve()
    return whole.with_name(f"{whole.name}{ending}")


def _settings(kind: Any, recipe: str, options: dict[str, Any], **more: Any) -> Any:
    """Settings of a recipe: the configuration's, under what the command line states."""
    named = options["configuration"]
    stated: dict[str, Any] = dict(getattr(configuration(named), recipe)) if named else {}
    if "lora" in stated:
        stated["lora"] = Lora(**stated["lora"])
    known = {field.name for field in fields(kind)}
    given = {name: value for name, value in options.items() if value is not None and name in known}
    if "rollouts" in given or "prompts" in given:
        both = {name: {**stated, **given}.get(name, 8) for name in ("prompts", "rollouts")}
        most = both["prompts"] * both["rollouts"]
        given["at_once"] = min(stated.get("at_once", 8), most)
    if (rank := options["rank"]) is not None:
        given["lora"] = Lora(rank, 2 * rank) if rank else None
    return kind(**{**stated, **given, **more})


def _base(options: dict[str, Any]) -> str:
    named = options["configuration"]
    base = options["base"] or (configuration(named).base if named else None)
    if base is None:
        raise SetupError("name the model to begin with: --base FOLDER, or --configuration")
    return str(base)


def _follow(
    settings: supervised.Settings | grpo.Settings, options: dict[str, Any], **stated: Any
) -> None:
    """Train by a recipe, and keep the rows and the recipe beside the model."""
    if not _is_ready(settings, options):
        return
    recipe = Recipe.of(settings, bins=options["bins"], ships=options["ships"] or False, **stated)
    learnt = _read(options["rows"])
    if recipe.ships:
        check_publishable(learnt)
    with ERR.status("writing the questions"):
        asked = questions(learnt, recipe.prompts, limit=options["limit"], seed=options["seed"])
    with ERR.status(f"loading {_base(options)}"):
        model = LanguageModel.load(_base(options))
    with _progress() as on_progress:
        log = recipe.train(
            model,
            asked,
            settings.out,
            lambda step: on_progress("training", step, settings.steps),
        )
    dataset.write_rows(settings.out / _ROWS, learnt)
    _tell(settings.out, asked, log, as_json=options["as_json"])


def _is_ready(settings: Any, options: dict[str, Any]) -> bool:
    """Print what a dry run asks for; True if training may begin."""
    if not options["dry_run"]:
        return True
    if options["configuration"] is None:
        raise SetupError("--dry-run needs --configuration, which says how large the model is")
    chosen = configuration(options["configuration"])
    needed = needs(chosen.shape, settings, chosen.gpu_gb * 1e9)
    total = sum(need.bytes for need in needed)
    facts = {
        "base": _base(options),
        "gpus": chosen.gpus,
        "gpu_gb": chosen.gpu_gb,
        "needs_gb": {need.what: round(need.bytes / 1e9, 2) for need in needed},
        "total_gb": round(total / 1e9, 2),
    }
    _memory_report(needed, facts).show(OUT, as_json=options["as_json"])
    return False


def _memory_report(needed: Sequence[Need], facts: dict[str, Any]) -> Report:
    cells = [(need.what, f"{need.bytes / 1e9:.2f} GB", need.how) for need in needed]
    room = f"of {facts['gpu_gb']:g} GB" if facts["gpus"] else "of memory"
    cells.append(("in all", f"{facts['total_gb']:.2f} GB", room))
    title = f"{facts['base']}: each of {facts['gpus'] or 'no'} GPUs holds at once"
    part = table(title, ("", "", "how"), cells, left=(0, 2), yields=2)
    return Report(facts, [part])


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show what is done, and which part of it."""
    with Progress(console=ERR, transient=True) as progress:
        task = progress.add_task("training", total=None)

        def show(what: str, done: int, whole: int | None) -> None:
            progress.update(task, description=what, completed=done, total=whole)

        yield show


def _tell(
    out: Path,
    asked: Sequence[Question],
    log: Sequence[dict[str, float]],
    *,
    as_json: bool,
) -> None:
    name = "reward" if log and "reward" in log[0] else "loss"
    values = [entry[name] for entry in log]
    if as_json:
        facts = {"out": str(out), "questions": len(asked), name: values}
        click.echo(json.dumps(facts))
        return
    ends = dict.fromkeys((values[0], values[-1])) if values else {}
    change = " -> ".join(f"{value:.3f}" for value in ends) or "not logged"
    OUT.print(
        f"{out}: trained on {len(asked):,} questions, {name} {change}\n"
        f"next: kernelcast train export {out} --format gguf"
    )
