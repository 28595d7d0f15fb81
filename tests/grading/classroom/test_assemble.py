"""Reading untrusted notebooks and assembling the notebook to run: honest work is kept."""

import copy
import json
import tracemalloc

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.grading import assemble as assembling
from course_pkg.grading import read_notebook
from course_pkg.grading.assemble import (
    Assembled,
    OtherAssignment,
    questions_by_cell,
    require_assignment,
    written_cells,
)
from course_pkg.grading.questions.registry import load
from course_pkg.grading.read_notebook import Unreadable
from tests.grading.classroom.hostile import JSON
from tests.grading.classroom.recorded import ROOT

RELEASE = (ROOT / "exercises" / "lora-math" / "lora-math.ipynb").read_bytes()


def read(data):
    return nbformat.from_dict(read_notebook.read(data))


def assemble(submitted, released):
    done = assembling.assemble(submitted, released)
    return Assembled(nbformat.from_dict(done.notebook), done.remarks)


def cell(kind="code", source="x = 1", **metadata):
    extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": metadata, "source": source, **extra}


def file(*cells, **more):
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells), **more}
    return json.dumps(book).encode()


def sources(notebook):
    return [c.source for c in notebook.cells]


# Reading


def test_reading_keeps_only_types_sources_and_grade_ids():
    hostile = {
        **cell("code", ["a\n", "b"], nbgrader={"grade_id": "counts", "points": 99, "grade": True}),
        "id": "<script>",
        "outputs": [{"output_type": "stream", "name": "stdout", "text": "5"}],
        "execution_count": 3,
        "attachments": {"x": {"image/svg+xml": "<svg>"}},
    }
    hostile["metadata"] |= {"tags": ["x"], "magics_language": "html", "deletable": False}
    data = file(
        hostile,
        cell("markdown", "text"),
        cell("raw", "raw"),
        metadata={"kernelspec": {"name": "bash", "display_name": "Bash"}, "widgets": {"x": 1}},
    )
    book = read(data)
    nbformat.validate(book)
    assert book.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    first, second, third = book.cells
    assert first == {
        "cell_type": "code",
        "metadata": {"nbgrader": {"grade_id": "counts"}},
        "source": "a\nb",
        "outputs": [],
        "execution_count": None,
        "id": "own-1",
    }
    assert second == {"cell_type": "markdown", "metadata": {}, "source": "text", "id": "own-2"}
    assert third.cell_type == "raw"
    assert data.count(b"script") and "script" not in nbformat.writes(book)


def test_every_minor_version_of_format_4_is_read():
    for minor in (0, 99, "x", None):
        assert sources(read(file(cell(), nbformat_minor=minor))) == ["x = 1"]


UNREADABLE = {
    "empty": (b"", "not JSON"),
    "cut": (RELEASE[: len(RELEASE) // 2], "not JSON"),
    "utf-16": (RELEASE.decode().encode("utf-16"), "not UTF-8 text"),
    "text": (b'"x"', "holds text; expected a notebook"),
    "number": (b"1e999", "holds a number"),
    "no format": (b"{}", "nbformat is nothing; expected 4"),
    "format true": (file(nbformat=True), "nbformat is true or false"),
    "format huge": (file(cell()).replace(b'"nbformat": 4', b'"nbformat": ' + b"9" * 9999), "0"),
    "format a deep list": (
        file(cell()).replace(b'"nbformat": 4', b'"nbformat": ' + b"[" * 400 + b"]" * 400),
        "nbformat is a list",
    ),
    "cells a dict": (file(cells={}), "cells: found an object; expected a list"),
    "a cell a number": (file(cell(), 7), "cell 2 is a number without a type; expected code"),
    "type a list": (file(cell(["code"])), "cell 1 is an object without a type"),
    "type unknown": (file(cell("heading")), "cell 1 is of type 'heading'"),
    "source with a number": (file(cell(source=["a", 5])), "source of cell 1 is a list"),
    "source null": (file(cell(source=None)), "source of cell 1 is nothing; expected text"),
    "too many cells": (file(*[cell()] * 2_001), "2,001 cells; at most 2,000"),
    "format 3": (b'{"nbformat": 3, "worksheets": []}', "convert an older notebook with `jupyter"),
    "deep": (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
    "deep in a cell": (
        file(cell()).replace(b"{}", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "too deeply",
    ),
    "too long": (b" " * (read_notebook.MAX_BYTES + 1), "16,777,217 bytes; at most 16,777,216"),
    "too many values": (b"[" + b"0," * 1_000_001 + b"0]", "values in the file; at most"),
}


def test_a_file_that_is_not_a_notebook_is_unreadable_with_a_reason():
    for case, (data, says) in UNREADABLE.items():
        with pytest.raises(Unreadable) as error:
            read(data)
        why = str(error.value)
        assert says in why and len(why) < 300 and why.isprintable(), (case, why)


def test_byte_order_mark_nan_huge_numbers_surrogates_and_nul_are_harmless():
    book = file(cell(source="a\ud800b\0c", nbgrader={"grade_id": "x\udfff"}))
    book = book.replace(
        b'"metadata": {}', b'"metadata": {"a": NaN, "b": -Infinity, "c": 1%s}' % (b"0" * 9999)
    )
    (only,) = read(b"\xef\xbb\xbf" + book).cells
    assert only.source == "a\ufffdb\ufffdc" and only.metadata.nbgrader.grade_id == "x\ufffd"
    json.dumps(only).encode()


def test_a_grade_id_that_is_not_a_short_text_is_ignored():
    odd = [{"nbgrader": {"grade_id": name}} for name in (5, "", "x" * 101)]
    cells = [{**cell(), "metadata": metadata} for metadata in (*odd, {"nbgrader": "x"}, "x")]
    assert [one.metadata for one in read(file(*cells)).cells] == [{}] * 5


LARGE = {
    "empty lists": b"[" + b"[]," * 4_000_000 + b"[]]",
    "objects": b"[" + b'{"aa":0},' * 330_000 + b"0]",
    "open string": b'"' + b'\\"' * 8_000_000,
    "quotes": b'"' * 16_000_000,
    "backslashes": b'"' + b"\\" * 15_999_999,
}


@pytest.mark.parametrize("case", LARGE)
def test_a_large_hostile_file_takes_at_most_ten_times_its_size_in_memory(case):
    data = LARGE[case]
    tracemalloc.start()
    with pytest.raises(Unreadable):
        read(data[: len(data) // 8] if case != "objects" else data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < max(10 * len(data), 150_000_000)


CELLS = st.fixed_dictionaries(
    {},
    optional={
        "cell_type": st.sampled_from(["code", "markdown", "raw", "heading"]) | JSON,
        "source": st.lists(st.text(max_size=5), max_size=3) | JSON,
        "outputs": JSON,
        "metadata": st.fixed_dictionaries({"nbgrader": st.fixed_dictionaries({"grade_id": JSON})})
        | JSON,
    },
)
BOOKS = st.fixed_dictionaries(
    {
        "nbformat": st.sampled_from([3, 4, 4, 4, 5]) | JSON,
        "cells": st.lists(CELLS | JSON, max_size=3) | JSON,
    },
    optional={"metadata": JSON, "nbformat_minor": JSON},
)


def only_unreadable(data):
    try:
        book = read(data)
    except Unreadable:
        return
    nbformat.validate(book)
    nbformat.validate(assemble(book, nbformat.reads(RELEASE, 4)).notebook)
    nbformat.writes(book).encode()


@settings(max_examples=300)
@given(BOOKS | JSON)
def test_any_json_is_read_or_raises_unreadable(book):
    only_unreadable(json.dumps(book).encode())


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, len(RELEASE)), st.integers(0, 50))
def test_any_bytes_are_read_or_raise_unreadable(noise, at, cut):
    only_unreadable(noise)
    only_unreadable(RELEASE[:at] + noise[:9] + RELEASE[at + cut :])


# Assembling


def nbgrader_cell(name, source, kind="code", **meta):
    values = {"grade": False, "solution": False, "locked": True, "task": False, "schema_version": 3}
    return {
        **cell(kind, source),
        "id": f"id-{name}",
        "metadata": {
            "nbgrader": {**values, "grade_id": name, "cell_type": kind, **meta},
            "editable": False,
        },
    }


def answer(name, source, kind="code", **meta):
    return nbgrader_cell(name, source, kind, solution=True, locked=False, **meta)


def test_cell(name, question):
    return nbgrader_cell(name, f'check("demo/{question}", f)', grade=True, points=2)


test_cell.__test__ = False

RELEASED = nbformat.reads(
    file(
        nbgrader_cell("intro", "# Demo", "markdown"),
        nbgrader_cell("setup", "import torch"),
        {**cell("code", 'STUDENT = ""'), "id": "plain"},
        answer("one", "raise NotImplementedError()"),
        test_cell("check-one", "one"),
        answer("two", "raise NotImplementedError()"),
        test_cell("check-two", "two"),
        answer("words", "YOUR ANSWER HERE", "markdown", grade=True, points=3),
    ),
    4,
)
NAMES = ["intro", "setup", "one", "check-one", "two", "check-two", "words"]


def student(change):
    """The released notebook after a student's changes to its list of cells, read and assembled."""
    cells = json.loads(nbformat.writes(RELEASED))["cells"]
    changed = change(cells)
    done = assemble(read(file(*(cells if changed is None else changed))), RELEASED)
    nbformat.validate(done.notebook)
    return done


def names(notebook):
    return [c.metadata.get("nbgrader", {}).get("grade_id", c.source) for c in notebook.cells]


def by_name(notebook):
    return {c.metadata.nbgrader.grade_id: c for c in notebook.cells if "nbgrader" in c.metadata}


def assert_whole(done):
    """Every released nbgrader cell once, as released, except for the source of the answers."""
    cells = by_name(done.notebook)
    original = by_name(RELEASED)
    assert sorted(n for n in names(done.notebook) if n in NAMES) == sorted(NAMES)
    for name, released in original.items():
        assert cells[name].metadata == released.metadata and cells[name].id == released.id
        assert cells[name].cell_type == released.cell_type
        assert "outputs" not in cells[name] or cells[name].outputs == []
        if not released.metadata.nbgrader.solution:
            assert cells[name].source == released.source


def test_an_unchanged_submission_is_the_release_without_remarks():
    done = student(lambda cells: None)
    assert_whole(done)
    assert names(done.notebook) == names(RELEASED) and done.remarks == ()


def test_answers_and_extra_cells_are_kept_in_the_students_order():
    def change(cells):
        cells[2]["source"] = 'STUDENT = "zoe"'
        cells[3]["source"] = "def f(): return 1"
        cells[7]["source"] = "In my own words."
        cells.insert(3, cell("code", "helper = 1"))
        cells.append(cell("raw", "note"))

    done = student(change)
    assert_whole(done)
    own = ['STUDENT = "zoe"', "helper = 1"]
    assert names(done.notebook) == [*NAMES[:2], *own, *NAMES[2:], "note"]
    kept = by_name(done.notebook)
    assert kept["one"].source == "def f(): return 1"
    assert kept["words"].source == "In my own words." and done.remarks == ()


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        ([4], "the locked cell check-one had been changed; the original was used"),
        (
            [0, 1, 4],
            "3 locked cells had been changed; the originals were used: intro, setup, check-one",
        ),
    ],
)
def test_changed_locked_cells_are_restored(changed, remark):
    def change(cells):
        for index in changed:
            cells[index]["source"] = 'check = lambda *a: 2\n"# forged"'

    done = student(change)
    assert_whole(done)
    assert done.remarks == (remark,)


def test_changed_metadata_is_ignored():
    def change(cells):
        for one in cells:
            if "nbgrader" in one["metadata"]:
                one["metadata"]["nbgrader"].update(
                    points=99, grade=True, solution=True, locked=False, task=True, checksum="x"
                )

    assert_whole(student(change))


def test_a_changed_cell_type_is_restored():
    done = student(lambda cells: cells[3].update(cell_type="markdown"))
    assert_whole(done)
    assert done.remarks == ("the type of the cell one had been changed; it was restored",)


def test_a_deleted_cell_is_restored_at_its_place():
    for gone, name in ((0, "intro"), (3, "one"), (4, "check-one"), (7, "words")):
        done = student(lambda cells, gone=gone: cells.pop(gone) and None)
        assert_whole(done)
        assert [n for n in names(done.notebook) if n in NAMES] == NAMES, name
        assert done.remarks == (f"the cell {name} was missing; it was restored",)


def test_if_all_cells_are_deleted_all_are_restored():
    done = student(lambda cells: [])
    assert_whole(done)
    assert names(done.notebook) == NAMES
    (remark,) = done.remarks
    assert remark == f"7 cells were missing; they were restored: {', '.join(NAMES)}"


def test_an_answer_in_an_extra_cell_comes_after_the_stub_and_before_the_test():
    def change(cells):
        del cells[3:5]  # the answer and its test
        cells.insert(3, cell("code", "def f(): return 1"))

    done = student(change)
    order = names(done.notebook)
    assert order.index("one") < order.index("def f(): return 1") < order.index("check-one")
    assert order.index("check-one") < order.index("two")


def test_the_last_edited_copy_of_an_answer_counts_and_all_copies_run():
    def change(cells):
        cells[3]["source"] = "first"
        cells.insert(4, {**cells[3], "source": "second"})
        cells.append({**cells[3], "source": RELEASED.cells[3].source})  # a copy of the stub

    done = student(change)
    assert_whole(done)
    assert by_name(done.notebook)["one"].source == "second"
    copies = [c for c in done.notebook.cells if c.metadata == {}]
    assert [c.source for c in copies] == ['STUDENT = ""', "first", RELEASED.cells[3].source]
    assert sources(done.notebook)[3:5] == ["first", "second"]
    assert done.remarks == ("the cell one appeared 3 times; one of them counts",)


def test_the_first_copy_of_a_test_is_the_test_and_the_others_run_as_extra_cells():
    def change(cells):
        cells.append({**cells[4], "source": "forged", "cell_type": "markdown"})

    done = student(change)
    assert_whole(done)
    last = done.notebook.cells[-1]
    assert (last.cell_type, last.source, last.metadata) == ("code", "forged", {})


def test_unknown_nbgrader_cells_become_extra_cells():
    invented = test_cell("bonus", "bonus")
    invented["metadata"]["nbgrader"]["points"] = 1000
    done = student(lambda cells: cells.append(invented))
    assert_whole(done)
    assert done.notebook.cells[-1].metadata == {}
    remark = "the assignment has no cell 'bonus'; kept as the student's own"
    assert done.remarks == (remark,)


def test_the_notebook_of_another_assignment_is_refused_and_a_poor_one_is_not():
    others = [test_cell(f"other-{n}", f"other-{n}") for n in range(4)]
    with pytest.raises(OtherAssignment, match="not the notebook of lora-math: it has 0 of the"):
        require_assignment(read(file(*others)), RELEASED, "lora-math")
    whole = [*RELEASED.cells, *others]
    for cells in ([], [cell("code", "mine")], RELEASED.cells[:1], whole):
        require_assignment(read(file(*cells)), RELEASED, "lora-math")


def test_cell_ids_never_clash_with_those_of_the_release():
    released = copy.deepcopy(RELEASED)
    released.cells[1].id = "own-1"
    done = assemble(read(file(cell("code", "mine"))), released)
    nbformat.validate(done.notebook)
    ids = [c.id for c in done.notebook.cells]
    assert len(set(ids)) == len(ids)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(["", "other", "code", "raw"])), max_size=20
    )
)
def test_every_released_cell_appears_once_for_any_order_copies_and_types(picks):
    def change(cells):
        made = []
        for index, how in picks:
            one = copy.deepcopy(cells[index])
            if how == "other":
                one["source"] = "changed"
            elif how:
                one["cell_type"] = how
            made.append(one)
        return made

    before = copy.deepcopy(RELEASED)
    assert_whole(student(change))
    assert before == RELEASED  # a pure function


# Which cell checks which question


@pytest.mark.slow
def test_every_test_cell_of_the_release_checks_an_existing_question():
    questions = questions_by_cell(nbformat.reads(RELEASE, 4), "lora-math")
    assert questions["check-counts"] == "counts"
    assert questions["check-by-hand-parameters"] == "by-hand/parameters"
    assert sorted(questions.values()) == sorted(load("lora-math").questions)


def test_a_test_cell_that_does_not_check_exactly_one_question_is_an_error():
    released = nbformat.reads(file(test_cell("a", "one"), test_cell("b", "two")), 4)
    for source in (
        "check(name, f)",
        'check("other/one", f)',
        'check("demo/one", f); check("demo/two", f)',
        'check("demo/one", f)',  # as the cell before it
    ):
        released.cells[1].source = source
        with pytest.raises(ValueError, match="the test cell 'b' checks"):
            questions_by_cell(released, "demo")


# Cells without nbgrader's metadata


def bare(cells, keep=()):
    for one in cells:
        one["metadata"] = {name: one["id"] for name in keep if name == "id"}
        if "cell" not in keep:
            one.pop("id", None)


@pytest.mark.parametrize("keep", [("cell",), ("id",), ()])
def test_cells_without_metadata_are_found_by_id_or_content(keep):
    def change(cells):
        cells[3]["source"] = cells[3]["source"] = "def one(): return 1"
        cells[7]["source"] = "my words"
        cells[1]["source"] += "\nimport mine" if keep else ""
        bare(cells, keep)

    released = nbformat.from_dict(RELEASED)
    released.cells[3].source = "def one():\n    raise NotImplementedError()"
    cells = json.loads(nbformat.writes(released))["cells"]
    change(cells)
    done = assemble(read(file(*cells)), released)
    assert [n for n in names(done.notebook) if n in NAMES] == NAMES
    kept = by_name(done.notebook)
    assert kept["one"].source == "def one(): return 1" and kept["words"].source == "my words"
    assert kept["setup"].source == "import torch"
    assert any("7 cells had lost their nbgrader metadata" in remark for remark in done.remarks)
    ours = written_cells(file(*cells), released, "demo")
    assert ours["id-one"] == "def one(): return 1" and ours["id-words"] == "my words"


def test_a_blank_is_put_back_before_the_answer_that_another_cell_has():
    released = nbformat.from_dict(RELEASED)
    released.cells[5].source = "two = None"

    def change(cells):
        cells[3]["source"] = "def f(): return 1\ntwo = 2"
        del cells[5]

    cells = json.loads(nbformat.writes(released))["cells"]
    change(cells)
    order = names(assemble(read(file(*cells)), released).notebook)
    assert order.index("two") < order.index("one") < order.index("check-two")


def test_only_what_a_student_changed_is_called_changed():
    """A typo in a locked cell was fixed after this student got the notebook."""
    from nbgrader.utils import compute_checksum

    released = nbformat.from_dict(RELEASED)
    for number in (0, 1, 4):
        meta = released.cells[number].metadata.nbgrader
        meta.checksum = compute_checksum(released.cells[number])
    cells = json.loads(nbformat.writes(released))["cells"]
    for number in (0, 1, 4):
        released.cells[number].source += "\n# better words"
    assert assemble(read(file(*cells)), released).remarks == ()
    cells[1]["source"] += "\nimport mine"
    (remark,) = assemble(read(file(*cells)), released).remarks
    assert remark == "the locked cell setup had been changed; the original was used"
