"""vLLM's configuration files, tuned by made-up times; vLLM itself is not run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kernelcast import SetupError
from kernelcast.integrations.vllm_moe import BATCH_SIZES, Configuration, MoeTuner

NAME = "E=128,N=384,device_name=NVIDIA_H200.json"
NAMES = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "num_warps",
    "num_stages",
)


def point(*values: int) -> dict[str, int]:
    return dict(zip(NAMES, values, strict=True))


SMALL, LARGE, ODD = (
    point(16, 64, 64, 1, 4, 5),
    point(128, 256, 64, 16, 8, 4),
    point(64, 128, 32, 1, 4, 6),  # of an older search space
)


def write(folder: Path, name: str = NAME, **winners: dict[str, Any]) -> Path:
    """A file as vLLM's `benchmark_moe.py` writes it: `m1` is batch size 1."""
    folder.mkdir(exist_ok=True)
    content = {"triton_version": "3.5.1", **{key[1:]: won for key, won in winners.items()}}
    (folder / name).write_text(json.dumps(content, indent=4) + "\n")
    return folder


def seconds(batch: int, configuration: Configuration) -> float | None:
    """Larger batches want larger blocks; large blocks with many stages do not fit."""
    m, n, k, group, warps, stages = (int(configuration[name]) for name in NAMES)
    if (m + n) * k * 2 * stages > 227 * 1024:
        return None
    steps = abs(math.log2(m / min(max(batch / 8, 16), 128))) + 0.5 * abs(math.log2(n / 128))
    others = abs(math.log2(k / 128)) + abs(math.log2(warps / 4)) + abs(stages - 3)
    return 1e-4 * math.exp2(0.5 * steps + 0.1 * others + 0.01 * math.log2(group))


def tuned(moe: MoeTuner, batch: int) -> list[Configuration]:
    measured = []
    while (configuration := moe.suggest(batch)) is not None:
        measured.append(configuration)
        moe.report(batch, configuration, seconds=seconds(batch, configuration))
    return measured


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("", 1920),
        (",dtype=fp8_w8a8", 1920),
        (",dtype=fp8_w8a8,block_shape=[128,128]", 640),
        (",block_shape=[128,128]", 1920),  # 16 bits are not quantised
    ],
)
def test_the_space_is_that_of_benchmark_moe(tmp_path: Path, kind: str, size: int) -> None:
    moe = MoeTuner(tmp_path / NAME.replace(".json", f"{kind}.json"))
    configuration = moe.suggest(64)
    assert configuration is not None
    assert list(configuration) == list(NAMES)
    assert len(moe._tuner(64).configurations) == size


def test_each_batch_size_is_tuned_and_the_file_is_vllms(tmp_path: Path) -> None:
    moe = MoeTuner(tmp_path / NAME, measurements=25)
    for batch in (1, 64, 1024):
        measured = tuned(moe, batch)
        assert len({json.dumps(dict(each)) for each in measured}) == len(measured) == 25
    moe.save(triton_version="3.6.0")
    text = (tmp_path / NAME).read_text()
    content = json.loads(text)
    assert text == json.dumps(content, indent=4) + "\n"
    assert list(content) == ["triton_version", "1", "64", "1024"]
    for batch, won in list(content.items())[1:]:
        assert list(won) == list(NAMES)
        runtime_s, best_s = seconds(int(batch), won), 1e-4
        assert runtime_s is not None
        assert runtime_s < 1.3 * best_s
    assert set(map(str, BATCH_SIZES)) > content.keys() - {"triton_version"}
    assert len(BATCH_SIZES) == 18


def test_what_won_nearest_is_measured_first(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "configs", m1=SMALL, m2=SMALL, m2048=LARGE, m4096=ODD)
    kept = write(tmp_path / "own", "E=128,N=192,device_name=NVIDIA_H200.json", m64=SMALL)
    write(elsewhere, "E=128,N=384,device_name=NVIDIA_H200,dtype=fp8_w8a8.json", m64=ODD)
    write(elsewhere, "E=8,N=7168,device_name=AMD_Instinct_MI300X.json", m4096={"BLOCK_SIZE_M": 16})
    (elsewhere / "README").write_text("These are tuned.")
    moe = MoeTuner(kept / "E=128,N=192,device_name=NVIDIA_H200.json", winners=[elsewhere])
    assert [moe.suggest(3000) for _ in range(3)] == [ODD, LARGE, SMALL]
    assert [moe.suggest(64), moe.suggest(1)] == [SMALL, SMALL]


def test_a_file_that_is_there_is_measured_first_and_kept(tmp_path: Path) -> None:
    folder = write(tmp_path, m512=SMALL, m2048=LARGE, m8192={**LARGE, "SPLIT_K": 1})
    moe = MoeTuner(folder / NAME, measurements=12)
    assert tuned(moe, 512)[0] == SMALL
    moe.save()
    content = json.loads((folder / NAME).read_text())
    assert list(content) == ["triton_version", "512", "2048", "8192"]
    assert content["triton_version"] == "3.5.1"
    assert content["512"] != SMALL
    assert content["2048"] == LARGE
    assert content["8192"] == {**LARGE, "SPLIT_K": 1}


def test_a_batch_size_learns_from_those_tuned_before(tmp_path: Path) -> None:
    moe = MoeTuner(tmp_path / NAME, measurements=25)
    fastest = min(tuned(moe, 64), key=lambda each: seconds(64, each) or math.inf)
    after, alone = tuned(moe, 96), tuned(MoeTuner(tmp_path / NAME, measurements=25), 96)
    assert after[0] == fastest
    best_alone = min(seconds(96, each) or math.inf for each in alone[:5])
    assert best_alone > 1.2 * (seconds(96, fastest) or math.inf)


def test_a_program_that_runs_again_goes_on(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "configs", "E=128,N=192,device_name=NVIDIA_H200.json", m64=SMALL)

    def begun() -> MoeTuner:
        return MoeTuner(
            tmp_path / NAME, winners=[elsewhere], measurements=8, store=tmp_path / "tuning.db"
        )

    moe = begun()
    assert moe.suggest(64) == SMALL
    moe.report(64, SMALL, seconds=seconds(64, SMALL))
    del moe  # lets go of the store
    again = begun()
    assert SMALL not in tuned(again, 64)
    assert len(again._tuner(64).outcomes) == 8


def test_another_space_and_wrong_files(tmp_path: Path) -> None:
    space = [{**point(16, 64, 64, 1, 4, 2), "waves_per_eu": waves} for waves in (0, 1, 2, 4)]
    amd = tmp_path / "E=8,N=7168,device_name=AMD_Instinct_MI300X.json"
    moe = MoeTuner(amd, configurations=space)
    for _ in space:
        configuration = moe.suggest(1)
        assert configuration in space
        moe.report(1, configuration, seconds=None)
    assert moe.suggest(1) is None
    moe.save()
    assert json.loads(amd.read_text()) == {}, "a kernel that always fails has no configuration"
    with pytest.raises(SetupError, match="copy it from the log of vLLM"):
        MoeTuner(tmp_path / "mixtral.json")
    for text in ("{", "[]", '{"1": "16,64"}'):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(SetupError, match="take it out of the folder"):
            MoeTuner(amd, winners=[tmp_path])
