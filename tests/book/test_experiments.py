"""Recorded experiments: complete, fresh, repeatable, and not lost when a sweep is stopped."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import rerun

from course_pkg.lm.experiments import (
    FOLDER,
    ExperimentError,
    content_hash,
    load_experiment,
    stale_files,
)

from .support import ROOT

EXPERIMENTS = ROOT / "book" / "experiments"
sys.path.insert(0, str(EXPERIMENTS))  # where the scripts import each other from
import record as recording  # noqa: E402

NAMES = sorted(
    path.stem for path in EXPERIMENTS.glob("*.py") if "\n    main(" in path.read_text("utf-8")
)


class Script:
    """What an experiment's script would hand to `main` when it is run."""

    def __init__(self, name: str) -> None:
        path = EXPERIMENTS / f"{name}.py"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recording, "main", self._keep)
            runpy.run_path(str(path), run_name="__main__")
        self.files = recording.files(path, self.data)

    def _keep(self, script, plan, prepare, measure, *, probe, settings, data) -> None:
        self.plan, self.prepare, self.measure = list(plan), prepare, measure
        self.probe, self.settings, self.data = probe, settings, data


# ---------------------------------------------------------------- the records of the book


def test_every_script_has_its_record_and_every_record_its_script():
    assert NAMES and sorted(path.stem for path in FOLDER.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_fresh(name):
    """If this fails, its message has the command that mends it."""
    record, script = load_experiment(name), Script(name)
    assert (record.files, record.settings) == (script.files, script.settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_has_every_row_of_its_plan_once(name):
    rows, keys = load_experiment(name).rows, Script(name).plan
    assert [key for key in keys if recording.find(rows, key) is None] == []
    assert len(rows) == len(keys)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_how_it_came_about(name):
    record = load_experiment(name)
    assert record.name == name and record.command.endswith(f"/{name}.py")
    assert {"cpu", "cores", "threads"} <= record.machine.keys()
    assert {"python", "torch", "transformers"} <= record.versions.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.date) and record.minutes > 1
    assert f"book/experiments/{name}.py" in record.files
    assert {
        "course_pkg/lm/datasets.py",
        "course_pkg/data/navigator/train.jsonl",
    } <= record.files.keys()


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_the_short_row_comes_out_again_as_recorded(name):
    script = Script(name)
    row = recording.timed(script.prepare(), script.probe, script.measure)
    assert recording.compare(row, recording.find(load_experiment(name).rows, script.probe)) == []


def test_cutting_nothing_gives_the_base_model_and_its_full_rank_the_trained_one():
    """Two records agree where they measure the same thing."""
    base = load_experiment("lora_rank").select(steps=0)[0]["nll"]
    for row in load_experiment("lora_delta_w").select(of="ΔW", steps=30):
        assert row["cut_ranks"][0] == 0
        assert row["cut_nll"][0] == pytest.approx(base, rel=1e-4)
        assert row["cut_nll"][-1] == pytest.approx(row["nll"], rel=0.01)


# ---------------------------------------------------------------- staleness, on a copy


@pytest.fixture
def copy(tmp_path) -> Path:
    """The files that a record rests on, elsewhere."""
    for name in load_experiment("lora_rank").files:
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
        (
            "book/experiments/lora_rank.py",
            "ALPHA, LEARNING_RATE, SEEDS = 16.0",
            "ALPHA, LEARNING_RATE, SEEDS = 32.0",
        ),
        (
            "book/experiments/navigator_task.py",
            "STEPS, BATCH, WARMUP = 30",
            "STEPS, BATCH, WARMUP = 31",
        ),
        ("course_pkg/adapters/lora.py", "self.alpha /", "2 * self.alpha /"),
        ("course_pkg/data/navigator/train.jsonl", "LOG: ", "Log: "),
    ],
)
def test_an_edited_constant_or_example_makes_it_stale(copy, file, old, new):
    assert load_experiment("lora_rank", root=copy).rows
    edit(copy / file, old, new)
    with pytest.raises(ExperimentError) as error:
        load_experiment("lora_rank", root=copy)
    assert file in str(error.value)
    assert "`python book/experiments/lora_rank.py --anew`" in str(error.value)
    assert "`python book/experiments/lora_rank.py --confirm`" in str(error.value)


def test_comments_docstrings_and_files_of_no_concern_do_not(copy):
    record = load_experiment("lora_rank")
    edit(copy / "book/experiments/lora_rank.py", '"""One run: ', '"""A run: ')
    edit(
        copy / "course_pkg/finetuning/masking.py",
        "IGNORE_INDEX = -100",
        "IGNORE_INDEX = -100  # none\n\n# words",
    )
    (copy / "course_pkg/cli.py").write_text("x = 1\n")
    assert stale_files(record, copy) == []


def test_what_an_installed_package_lacks_is_not_asked_for(copy):
    shutil.rmtree(copy / "book")
    assert load_experiment("lora_rank", root=copy).rows


def test_a_missing_record_is_one_clear_error():
    with pytest.raises(
        ExperimentError, match=r"no record 'lora_ranks' .* there are: lora_delta_w, lo"
    ):
        load_experiment("lora_ranks")


SOURCE = '''"""Doc."""
def f(x):  # a comment
    """Doc."""

    return f"#{x}" + """a

    # b"""
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("  # a comment", "", True),
        ('"""Doc."""', '"""Other.\n\n# words\n"""', True),
        ("    return", "\n\n    # why\n    return", True),
        ("#{x}", "{x}", False),
        ("a\n\n", "a\n", False),  # a blank line in a string counts
        ("    # b", "    # c", False),
        ("f(x)", "f(x, y)", False),
    ],
)
def test_the_hash_sees_what_can_change_a_result_and_no_more(tmp_path, old, new, same):
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SOURCE)
    after.write_text(SOURCE)
    edit(after, old, new)
    assert (content_hash(before) == content_hash(after)) is same


# ---------------------------------------------------------------- running one, in miniature


class Bench:
    """A made-up experiment in a folder of its own, whose rows are squares."""

    plan = tuple({"x": x} for x in range(4))

    def __init__(self, folder: Path) -> None:
        self.root, self.prepared, self.measured, self.factor = folder, 0, [], 1.0
        self.stop_at = None
        self.script = folder / "book/experiments/squares.py"
        self.script.parent.mkdir(parents=True)
        self.script.write_text("FACTOR = 1\n")

    def prepare(self) -> None:
        self.prepared += 1

    def measure(self, task: None, key: dict) -> dict:
        if key["x"] == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(key["x"])
        return {"square": self.factor * key["x"] ** 2}

    def run(self, *arguments: str) -> dict:
        keywords = {"probe": {"x": 3}, "settings": {}, "folder": self.root, "root": self.root}
        recording.main(
            str(self.script), self.plan, self.prepare, self.measure, arguments=arguments, **keywords
        )
        return self.read()

    def read(self) -> dict:
        return json.loads((self.root / "squares.json").read_text("utf-8"))


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


def test_a_stopped_sweep_keeps_its_rows_and_goes_on(bench):
    bench.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert [row["square"] for row in bench.read()["rows"]] == [0, 1]
    bench.stop_at = None
    assert [row["square"] for row in bench.run()["rows"]] == [0, 1, 4, 9]
    assert bench.measured == [0, 1, 2, 3]


def test_a_finished_record_costs_nothing_to_run_again(bench):
    first = bench.run()
    assert bench.run() == first
    assert bench.prepared == 1


def test_rows_of_other_code_are_neither_mixed_nor_dropped_unasked(bench):
    old = bench.run()
    bench.script.write_text("FACTOR = 2\n")
    bench.factor = 2.0
    with pytest.raises(SystemExit, match=r"squares\.py changed .* --anew .* --confirm"):
        bench.run()
    assert bench.read() == old
    assert [row["square"] for row in bench.run("--anew")["rows"]] == [0, 2, 8, 18]


def test_after_an_edit_that_changes_nothing_one_row_confirms_the_record(bench):
    old = bench.run()
    bench.script.write_text("FACTOR = 3 - 2\n")
    new = bench.run("--confirm")
    assert new["rows"] == old["rows"] and bench.measured == [0, 1, 2, 3, 3]
    assert new["files"] != old["files"] and new["confirmed"]["versions"] == old["versions"]
    load_experiment("squares", folder=bench.root, root=bench.root)


def test_a_row_that_differs_confirms_nothing(bench):
    old = bench.run()
    bench.script.write_text("FACTOR = 2\n")
    bench.factor = 2.0
    with pytest.raises(SystemExit, match=r"not confirmed, square was 9\.0 and is 18\.0"):
        bench.run("--confirm")
    assert bench.read() == old
    with pytest.raises(ExperimentError, match="stale"):
        load_experiment("squares", folder=bench.root, root=bench.root)


def test_there_is_nothing_to_confirm_without_a_record(bench):
    with pytest.raises(SystemExit, match="no record to confirm"):
        bench.run("--confirm")


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (1.0, 1.0005, True),
        (1.0, 1.002, False),
        ([1.0, 2.0], [1.0, 2.0004], True),
        ([1.0], [1.0, 2.0], False),
        ({"a": [1.0]}, {"a": [2.0]}, False),
        (3, 4, False),
    ],
)
def test_results_are_compared_within_a_tolerance(ours, theirs, same):
    assert (recording.compare({"r": ours, "seconds": 1}, {"r": theirs, "seconds": 9}) == []) is same


# ---------------------------------------------------------------- what rests on what


def test_a_page_rests_on_the_record_that_it_names_and_on_no_other(tmp_path):
    folder = tmp_path / rerun.RECORDS
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text("{}")
    (folder.parent / "words.txt").write_text("words")
    (tmp_path / "course_pkg/reader.py").write_text('DATA = "data"\n')

    def found(code: str) -> set[str]:
        page = tmp_path / "book" / "page.md"
        return {path.name for path in rerun.dependencies(tmp_path, page, code)}

    assert found("load_experiment('one')") == {"one.json"}
    assert found("from course_pkg import reader") == {"reader.py", "words.txt"}


def test_a_script_rests_on_the_modules_beside_it_but_not_on_the_bookkeeping(bench):
    beside = bench.script.parent
    bench.script.write_text("import record\nimport task\n")
    (beside / "task.py").write_text("from course_pkg import data\n")
    (beside / "record.py").write_text("from course_pkg import records\n")
    (beside / "other.py").write_text("")
    package = bench.root / "course_pkg"
    package.mkdir()
    for name in ("__init__", "data", "records"):
        (package / f"{name}.py").write_text("")
    assert recording.files(bench.script, root=bench.root).keys() == {
        "book/experiments/squares.py",
        "book/experiments/task.py",
        "course_pkg/__init__.py",
        "course_pkg/data.py",
    }
