"""The records of experiments in the book: complete, fresh, and repeatable."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from course_pkg.pages.experiments import (
    FOLDER,
    ExperimentError,
    changed_files,
    code_hashes,
    load_experiment,
    script_sources,
)
from tests.book.support import EXPERIMENTS, ROOT, recording

NAMES = sorted(
    path.stem for path in EXPERIMENTS.glob("*.py") if "\n    main(" in path.read_text("utf-8")
)


class Script:
    """What an experiment's script passes to `main` when it runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        path = EXPERIMENTS / f"{name}.py"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recording, "main", self._keep)
            runpy.run_path(str(path), run_name="__main__")

    def _keep(self, script, plan, prepare, measure, *, probe, settings, data=()) -> None:
        self.plan = list(recording.keys(plan, load_experiment(self.name).rows))
        self.prepare = prepare
        self.measure = measure
        self.probe = probe
        self.settings = settings
        self.data = data


def test_every_script_has_its_record_and_every_record_its_script():
    assert NAMES and sorted(path.stem for path in FOLDER.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_record_has_every_row_of_its_plan_once_and_says_how_it_came_about(name):
    """Whether its code has changed since is for `make records`."""
    record = load_experiment(name)
    script = Script(name)
    assert record.settings == script.settings
    assert [key for key in script.plan if recording.find(record.rows, key) is None] == []
    assert len(record.rows) == len(script.plan)
    assert f"book/experiments/{name}.py" in record.files
    assert {f"course_pkg/data/{path}" for path in script.data} <= record.files.keys()
    assert record.name == name and record.command.endswith(f"/{name}.py")
    assert {"cpu", "cores", "threads"} <= record.machine.keys()
    assert {"python", "torch", "transformers"} <= record.versions.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.date) and record.minutes > 1


ALWAYS = "lora_rank"  # its short row runs in every `make test`, those of the others in test-all
# Rows of a few seconds, which CI runs too. The others train a model, for up to a minute.
IN_CI = (
    "continuous_batching",
    "engine_steps",
    "grading_scale",
    "iteration_times",
    "serving_policies",
)


def marks(name: str) -> list[pytest.MarkDecorator]:
    """When the short row of a record can run."""
    found = [] if name == ALWAYS else [pytest.mark.exhaustive]
    if name not in (ALWAYS, *IN_CI):
        found.append(pytest.mark.minutes)
    if name == "grading_scale":
        groups = Path("/sys/fs/cgroup/cpuacct")
        why = "no control groups that count seconds"
        found += [pytest.mark.needs_root, pytest.mark.skipif(not groups.is_dir(), reason=why)]
    return found


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", [pytest.param(n, marks=marks(n)) for n in NAMES])
def test_the_short_row_comes_out_again_as_recorded(name):
    script = Script(name)
    record = load_experiment(name)
    row = recording.timed(script.prepare(), script.probe, script.measure)
    recorded = recording.find(record.rows, script.probe)
    assert recording.compare(row, recorded, recording.tolerance(record.machine)) == []


def test_cutting_nothing_gives_the_base_model_and_its_full_rank_the_trained_one():
    """Two records agree where they measure the same thing."""
    base = load_experiment("lora_rank").select(steps=0, split="held-out")[0]["nll"]
    rows = [row for row in load_experiment("lora_delta_w").select(of="ΔW") if row["steps"] > 1]
    assert len(rows) == 1
    for row in rows:
        assert row["cut_ranks"][0] == 0
        assert row["cut_nll"][0] == pytest.approx(base, rel=1e-4)
        assert row["cut_nll"][-1] == pytest.approx(row["nll"], rel=0.01)


def test_the_same_run_in_another_record_has_the_same_loss():
    """Full fine-tuning and LoRA at rank 8, by seed, in three records."""
    ours = load_experiment("weight_directions")
    deltas = load_experiment("lora_delta_w").select(seed=2, split="held-out")
    loras = load_experiment("lora_rank").select(targets="all", rank=8, split="held-out")
    assert len(deltas) == 1 and len(loras) == 2
    for method, rows in (("full", deltas), ("LoRA", loras)):
        for row in rows:
            key = {name: row[name] for name in ("rate", "seed", "split")}
            (same,) = ours.select(method=method, **key)
            assert same["nll"] == pytest.approx(row["nll"], rel=1e-3)


def by_adapter(rows) -> dict[tuple, dict[float, float]]:
    """Adapter, or None for full fine-tuning → learning rate → loss."""
    found: dict[tuple, dict[float, float]] = {}
    for row in rows:
        found.setdefault((row.get("targets"), row.get("rank")), {})[row["rate"]] = row["nll"]
    return found


@pytest.mark.parametrize("name", ["lora_rank", "lora_delta_w"])
def test_a_learning_rate_is_the_best_on_validation_and_not_the_last_one_tried(name):
    """Results are reported at this rate, on the held-out split, with other seeds."""
    rows = [row for row in load_experiment(name).rows if row.get("seed") is not None]
    tuning = [row for row in rows if row.get("split") == "validation"]
    reported = [row for row in rows if row not in tuning and row.get("answers") is None]
    assert {row["seed"] for row in tuning}.isdisjoint(row["seed"] for row in reported)
    chosen = by_adapter(reported)
    assert chosen and chosen.keys() == by_adapter(tuning).keys()
    for adapter, losses in by_adapter(tuning).items():
        best = min(losses, key=losses.get)
        assert min(losses) < best < max(losses), f"{adapter}: try more rates"
        assert list(chosen[adapter]) == [best]


# ---------------------------------------------------------------- what changed, on a copy


@pytest.fixture
def copy(tmp_path) -> Path:
    """The files that a record depends on today, in another folder."""
    record = load_experiment("lora_rank")
    code = code_hashes(record.name, record.programs, script_sources(ROOT))
    data = [name for name in record.files if not name.endswith(".py")]
    for name in (*code, *data):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), "utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("book/experiments/lora_rank.py", "USE_RSLORA = 8.0", "USE_RSLORA = 16.0"),
        ("book/experiments/navigator_task.py", "WARMUP = 20", "WARMUP = 21"),
        ("course_pkg/adapters/lora.py", "return alpha /", "return 2 * alpha /"),
        ("course_pkg/data/navigator/train.jsonl", "LOG: ", "Log: "),
    ],
)
def test_an_edited_constant_or_example_is_named(copy, file, old, new):
    record = load_experiment("lora_rank")
    before = changed_files(record, script_sources(copy))
    edit(copy / file, old, new)
    assert set(changed_files(record, script_sources(copy))) - set(before) <= {file}
    assert file in changed_files(record, script_sources(copy))


def test_what_an_installed_package_lacks_is_not_asked_for(copy):
    shutil.rmtree(copy / "book")
    assert changed_files(load_experiment("lora_rank"), script_sources(copy)) == []


def test_a_missing_record_is_one_clear_error():
    known = r"no record 'lora_ranks' .* the records are: .*lora_delta_w, lo"
    with pytest.raises(ExperimentError, match=known):
        load_experiment("lora_ranks")
