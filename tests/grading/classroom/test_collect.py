"""Submissions from folders and zips: what is read, and what is refused without harm to others."""

import contextlib
import io
import os
import shutil
import socket
import stat
import struct
import zipfile
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.grading.classroom.submissions.collect import MIB, Files, SourceError, collect
from course_pkg.grading.classroom.submissions.names import valid_student
from course_pkg.grading.classroom.submissions.sources import Folder, Refused

A = "lora-math"
NOTEBOOK = b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


def put(root, path, data=NOTEBOOK):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return target


def nested(student):
    return f"{student}/{A}/{A}.ipynb"


def make_zip(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in entries:
            out.writestr(name, data)
    return path


def zipped(root, path):
    files = [p for p in sorted(root.rglob("*")) if p.is_file()]
    return make_zip(path, [(p.relative_to(root).as_posix(), p.read_bytes()) for p in files])


def outcomes(source, **options):
    """For each student: the files, or why it is refused."""
    outcome_of = {}
    for submission in collect(source, A, **options):
        try:
            outcome_of[submission.student] = submission.read()
        except Refused as error:
            outcome_of[submission.student] = str(error)
    return outcome_of


GOOD = Files(NOTEBOOK, {})


@pytest.fixture
def source(tmp_path):
    """A folder with one good submission, zoe's, which must be read whatever else is there."""
    put(tmp_path / "in", nested("zoe"))
    return tmp_path / "in"


@pytest.fixture(params=["folder", "zip"])
def given_as(request):
    """How an instructor gives a folder: as it is, or as a zip beside it."""
    if request.param == "folder":
        return lambda folder: folder
    return lambda folder: zipped(folder, folder.with_suffix(".zip"))


# Layouts


def test_nbgraders_layout_gives_notebook_and_data_sorted_by_student(source, given_as):
    put(source, nested("bo"))
    put(source, f"bo/{A}/data/x.csv", b"1,2")
    put(source, f"bo/{A}/torch.py", b"shadow")
    put(source, f"bo/{A}/.ipynb_checkpoints/old.ipynb")
    put(source, f"bo/{A}/.DS_Store")
    put(source, f"bo/{A}/timestamp.txt", b"2026-01-02 03:04:05 UTC")
    put(source, "bo/other/other.ipynb")
    put(source, "amy/other/other.ipynb")
    put(source, "__MACOSX/bo/._x")
    put(source, "README.txt", b"ours")
    files = outcomes(given_as(source))
    assert files == {
        "bo": Files(NOTEBOOK, {"data/x.csv": b"1,2", "torch.py": b"shadow"}),
        "zoe": GOOD,
    }
    assert list(files) == ["bo", "zoe"]


def test_a_flat_folder_gives_notebooks_whose_suffix_may_be_in_capitals(tmp_path, given_as):
    for name in ("zoe.ipynb", "Bo.b.IPYNB", "notes.txt", "__MACOSX/._zoe.ipynb"):
        put(tmp_path / "in", name)
    assert outcomes(given_as(tmp_path / "in")) == {"Bo.b": GOOD, "zoe": GOOD}


def test_a_file_has_no_children(source):
    assert Folder(source).children(("zoe", A, f"{A}.ipynb")) == {}


def test_file_names_that_operating_systems_choose_are_accepted(source, given_as):
    names = ("Screenshot at 3.45\u202fPM.png", "図\u30001.png", "👩\u200d🔬.png")
    for name in (*names, "Icon\r"):  # macOS marks a folder with an icon by "Icon\r"
        put(source, f"zoe/{A}/{name}", b"1")
    assert outcomes(given_as(source)) == {"zoe": Files(NOTEBOOK, dict.fromkeys(names, b"1"))}


def test_a_file_name_that_is_not_utf8_refuses_only_its_submission(source):
    put(source, nested("bo"))
    with open(os.fsencode(source / "bo" / A) + b"/\xff.txt", "wb"):
        pass
    results = outcomes(source)
    assert results["zoe"] == GOOD and "not every system can write" in results["bo"]


def test_a_zip_of_the_whole_folder_is_read(source, tmp_path):
    place = zipped(tmp_path, tmp_path.parent / f"{tmp_path.name}.zip")
    assert outcomes(place) == {"zoe": GOOD}
    with zipfile.ZipFile(place, "a") as out:
        out.writestr("../../evil.ipynb", b"x")
    assert outcomes(place) == {"zoe": GOOD}


FLAT = ("amy.ipynb", "zoe.ipynb", nested("bo"))
FOLDERS = (nested("amy"), nested("zoe"), "bo.ipynb")


@pytest.mark.parametrize(
    ("files", "odd", "says"),
    [
        (FLAT, "[bo]", "skipped the folder bo; expected only <student>.ipynb"),
        (FOLDERS, "[bo.ipynb]", "skipped the file bo.ipynb; expected only <student>/"),
    ],
)
def test_what_does_not_fit_the_layout_is_named_and_the_others_are_read(
    tmp_path, given_as, files, odd, says
):
    for name in files:
        put(tmp_path / "in", name)
    results = outcomes(given_as(tmp_path / "in"))
    assert says in results.pop(odd) and results == {"amy": GOOD, "zoe": GOOD}
    assert not valid_student(odd)  # nobody gets a record for it


UNUSABLE = [
    ("xyz", rf"xyz does not exist; expected a folder or zip with <student>/{A}/{A}\.ipynb"),
    ("no/such", "does not exist"),
    ("inn", r"inn does not exist; .* has in"),
    ("in", "found zoe/lora-maths; expected <student>/lora-math/"),
    ("bad.zip", "can't be read as a zip"),
    ("empty", "holds no submission to lora-math: found nothing"),
]


def test_an_unusable_source_says_what_it_contains(tmp_path):
    put(tmp_path / "in", "zoe/lora-maths/lora-maths.ipynb")
    put(tmp_path, "bad.zip", b"PK\3\4 not really")
    (tmp_path / "empty").mkdir()
    for path, says in UNUSABLE:
        with pytest.raises(SourceError, match=says):
            collect(tmp_path / path, A)


def test_only_the_given_students_are_collected_and_unknown_ones_get_suggestions(source):
    put(source, nested("bo"))
    assert list(outcomes(source, students=["bo"])) == ["bo"]
    with pytest.raises(SourceError, match=r"no submission of zo to lora-math; similar: .*zoe"):
        collect(source, A, students=["zo", "bo"])


def test_files_are_read_when_read_is_called(source):
    (submission,) = collect(source, A)
    put(source, nested("zoe"), b"later")
    assert submission.read().notebook == b"later"
    shutil.rmtree(source / "zoe")
    with pytest.raises(Refused, match="can't be read"):
        submission.read()


# Names


def test_a_wrong_file_name_says_what_was_found_and_expected(source):
    wrong = {
        "al": ([f"al/{A}/a.ipynb", f"al/{A}/LoRA-Math.ipynb"], "found LoRA-Math.ipynb, a.ipynb; "),
        "bo": ([f"bo/{A}.ipynb"], "found bo/lora-math.ipynb; expected bo/lora-math/lora-math"),
        "cy": (["cy/LoRA_math/x.ipynb"], "found cy/LoRA_math; expected cy/lora-math/lora-math"),
        "di": ([f"di/{A}/{A}.ipynb/x"], "found no notebook; expected lora-math.ipynb"),
    }
    for files, _ in wrong.values():
        for name in files:
            put(source, name)
    results = outcomes(source)
    assert results["zoe"] == GOOD
    assert [student for student, (_, says) in wrong.items() if says not in results[student]] == []


USUAL = ["ada", "Zoë", "陈伟", "o'neill", "a.b-c_d@uni.edu", "x+y", "7up", "a b", "प्रिया"]
FORBIDDEN_INSIDE = '/\\*?[]\n\t\0;:,"<>$%&|{}\u202e\u200b\u3164\ufe0f\ud800'
FORBIDDEN_FIRST = "=+-@.~' "
MISLEADING = ("", ".", "..", "a..b", "a ", "a.", "Zoe\u0308", "a" * 65, "𝒜" * 64)


def test_ids_that_are_paths_formulas_patterns_or_misleading_are_invalid():
    assert [student for student in (*USUAL, "a" * 64) if not valid_student(student)] == []
    bad = [*(f"a{c}b" for c in FORBIDDEN_INSIDE), *(f"{c}a" for c in FORBIDDEN_FIRST), *MISLEADING]
    assert [student for student in bad if valid_student(student)] == []


@given(st.text(max_size=70))
def test_a_valid_id_is_a_plain_file_name(student):
    if valid_student(student):
        assert os.path.basename(student) == student and student.isprintable()
        assert student[0] not in "=+-@.~" and not set(student) & set("*?[]/\\\0")
        assert len(os.fsencode(student)) <= 200


def test_an_invalid_id_is_refused_and_printed_escaped(source):
    for name in ("=cmd|x", "a\nb", "a\u202eb", b"a\xff"):
        place = os.path.join(os.fsencode(source), os.fsencode(name), A.encode())
        os.makedirs(place)
        with open(os.path.join(place, f"{A}.ipynb".encode()), "wb") as file:
            file.write(NOTEBOOK)
    results = outcomes(source)
    assert results.pop("zoe") == GOOD and len(results) == 4
    for student, why in results.items():
        assert not valid_student(student) and student.isprintable()
        assert "can't be a student's id" in why


def test_a_decomposed_name_gives_the_composed_id(tmp_path):
    put(tmp_path, nested("Zoe\u0308"))
    assert outcomes(tmp_path) == {"Zo\u00eb": GOOD}


def test_ids_that_differ_only_in_case_or_composition_are_both_refused(source):
    for name in ("Ada", "ada", "Zo\u00eb", "Zoe\u0308"):
        put(source, nested(name))
    results = outcomes(source)
    assert results.pop("zoe") == GOOD and len(results) == 4
    for student, why in results.items():
        assert "2 submissions have the id" in why
        accents = "accents are encoded in two ways" in why
        assert accents == student.lower().startswith("zo") and ("lower case" in why) != accents
    assert [valid_student(student) for student in results].count(False) == 1  # the decomposed one


# Special files


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def unix_socket(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as end:
        here = os.open(path.parent, os.O_RDONLY)
        end.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


HOSTILE = {
    "link as notebook": lambda d, s: link(d / f"{A}.ipynb", s),
    "link beside": lambda d, s: (put(d, f"{A}.ipynb"), link(d / "x", s)),
    "dangling link": lambda d, s: (put(d, f"{A}.ipynb"), link(d / "x", "/no/such")),
    "link to a folder": lambda d, s: (put(d, f"{A}.ipynb"), link(d / "x", s.parent)),
    "link as the assignment": lambda d, s: link(d, s.parent),
    "link as the student": lambda d, s: link(d.parent, s.parent),
    "hard link": lambda d, s: (put(d, "x"), os.link(d / "x", d / f"{A}.ipynb")),
    "pipe as notebook": lambda d, s: (put(d, "x"), os.mkfifo(d / f"{A}.ipynb")),
    "pipe beside": lambda d, s: (put(d, f"{A}.ipynb"), os.mkfifo(d / "x")),
    "socket": lambda d, s: (put(d, f"{A}.ipynb"), unix_socket(d / "x")),
    "name with a newline": lambda d, s: (put(d, f"{A}.ipynb"), put(d, "a\nb")),
    "name with a backslash": lambda d, s: (put(d, f"{A}.ipynb"), put(d, "..\\b")),
    "too deep": lambda d, s: (put(d, f"{A}.ipynb"), put(d, "a/" * 16 + "x")),
}


def test_a_special_file_is_refused_by_name_without_blocking(source, tmp_path):
    secret = put(tmp_path / "secret", "secret.txt", b"SECRET")
    for case, make in HOSTILE.items():
        make(source / case / A, secret)
    results = outcomes(source)
    assert results.pop("zoe") == GOOD and set(results) == set(HOSTILE)
    assert [case for case, why in results.items() if not isinstance(why, str)] == []
    told = [case for case, why in results.items() if case in why and "SECRET" not in why]
    assert told == sorted(HOSTILE)


def test_a_pipe_as_timestamp_does_not_block(source):
    os.mkfifo(source / "zoe" / A / "timestamp.txt")
    (submission,) = collect(source, A)
    assert submission.read() == GOOD


def test_a_link_alone_is_a_refused_submission(tmp_path):
    link(tmp_path / "bo.ipynb", "/etc/passwd")
    assert "bo.ipynb is a link" in outcomes(tmp_path)["bo"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a device")
def test_a_device_is_refused_without_opening_it(source):
    put(source, nested("bo"))
    os.mknod(source / "bo" / A / "x", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    assert "is a device" in outcomes(source)["bo"]


def test_a_file_replaced_by_a_link_after_listing_is_refused(source, tmp_path):
    secret = put(tmp_path / "secret", f"{A}.ipynb", b"SECRET")
    (submission,) = collect(source, A)
    shutil.rmtree(source / "zoe" / A)
    link(source / "zoe" / A, secret.parent)
    with pytest.raises(Refused, match="is a link"):
        submission.read()


def test_a_file_replaced_by_a_link_while_it_is_opened_is_refused(source, tmp_path, monkeypatch):
    secret = put(tmp_path / "secret", "secret.txt", b"SECRET")
    (submission,) = collect(source, A)
    target = source / nested("zoe")
    real = os.stat

    def stat_then_swap(path, *args, **options):
        status = real(path, *args, **options)
        if path == f"{A}.ipynb":
            target.unlink(missing_ok=True)
            target.symlink_to(secret)
        return status

    monkeypatch.setattr(os, "stat", stat_then_swap)
    with pytest.raises(Refused):
        submission.read()


def test_no_file_descriptor_stays_open(source):
    for case in HOSTILE:
        HOSTILE[case](source / case.replace(" ", "-") / A, put(source.parent, "s/secret.txt"))
    outcomes(source)
    before = len(os.listdir("/proc/self/fd"))
    outcomes(source)
    assert len(os.listdir("/proc/self/fd")) == before


# Limits


def test_the_size_of_a_file_and_the_number_of_files_are_limited(source):
    put(source, nested("many"))
    for i in range(1000):
        (source / "many" / A / f"d{i}").mkdir()
    os.truncate(put(source, nested("endless")), 1 << 40)  # sparse
    results = outcomes(source)
    assert results.pop("zoe") == GOOD and "more than 1,000 files" in results["many"]
    assert f"{nested('endless')} is too large: more than 16,777,216 bytes" in results["endless"]


def test_the_size_of_all_files_is_limited_and_may_be_reached(source):
    os.truncate(source / nested("zoe"), 16 * MIB)
    os.truncate(put(source, f"zoe/{A}/a"), 48 * MIB)
    assert isinstance(outcomes(source)["zoe"], Files)  # each limit is reached exactly
    put(source, f"zoe/{A}/z", b"x")
    why = outcomes(source)["zoe"]
    assert why.startswith("zoe/lora-math: the files are more than 67,108,864 bytes together")


# Timestamps


def test_a_timestamp_file_in_a_submission_is_not_believed(source):
    put(source, f"zoe/{A}/timestamp.txt", b"2001-01-02 03:04:05 UTC")
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
    os.utime(source / nested("zoe"), (moment, moment))
    (submission,) = collect(source, A)
    assert submission.timestamp == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert not submission.trusted and submission.read() == GOOD


def test_the_time_of_a_zip_entry_is_this_machines(tmp_path):
    info = zipfile.ZipInfo(nested("zoe"), (2026, 3, 1, 12, 0, 0))
    (submission,) = collect(make_zip(tmp_path / "in.zip", [(info, NOTEBOOK)]), A)
    assert submission.timestamp == datetime(2026, 3, 1, 12).astimezone(UTC)


# Zips


def entry(name, mode=0, compression=zipfile.ZIP_DEFLATED):
    info = zipfile.ZipInfo(name)
    info.compress_type = compression
    info.external_attr = mode << 16
    return info


def change_flags(path, change, name=""):
    """Change the 16 flags of the entries of that name, in their headers and in the contents."""
    data = bytearray(path.read_bytes())
    for signature, flags, at in ((b"PK\3\4", 6, 30), (b"PK\1\2", 8, 46)):
        i = -1
        while (i := data.find(signature, i + 1)) >= 0:
            if data[i + at : i + at + len(name)] == name.encode():
                (before,) = struct.unpack_from("<H", data, i + flags)
                struct.pack_into("<H", data, i + flags, change(before))
    path.write_bytes(data)
    return path


ZIP_CASES = {
    "parent folder": ([(f"bo/{A}/../../zoe/x", b"x")], "not a plain path"),
    "empty part": ([(f"bo/{A}//x", b"x")], "not a plain path"),
    "dot": ([(f"bo/{A}/./x", b"x")], "not a plain path"),
    "beside the assignment": ([("bo/../zoe/lora-math/lora-math.ipynb", b"x")], "not a plain path"),
    "backslash inside": ([(f"bo/{A}/..\\x", b"x")], "not a plain path"),
    "a link": ([(entry(f"bo/{A}/x", stat.S_IFLNK | 0o777), b"/etc/passwd")], "is a link"),
    "a pipe": ([(entry(f"bo/{A}/x", stat.S_IFIFO | 0o666), b"")], "is a pipe"),
    "twice": ([(f"bo/{A}/x", b"1"), (f"bo/{A}/x", b"2")], "more than once"),
    "file and folder": ([(f"bo/{A}/x", b"1"), (f"bo/{A}/x/y", b"2")], "both a file and a folder"),
    "bzip2": ([(entry(f"bo/{A}/x", 0, zipfile.ZIP_BZIP2), b"1")], "an unusual way"),
    "a bomb": ([(f"bo/{A}/x", bytes(4 * MIB))], "far more than its size"),
    "many": ([(f"bo/{A}/{i}", b"") for i in range(1001)], "more than 1,000 files and folders"),
    "deep": ([(f"bo/{A}/" + "a/" * 17 + "x", b"")], "16 folders deep"),
    "a control": ([(f"bo/{A}/a\nb", b"")], "not every system can write"),
    "link as notebook": ([(entry(nested("bo"), stat.S_IFLNK | 0o777), b"/etc/passwd")], "a link"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_bad_zip_entry_refuses_only_its_submission(tmp_path):
    for case, (entries, says) in ZIP_CASES.items():
        good = [] if "link as notebook" in case else [(nested("bo"), NOTEBOOK)]
        path = make_zip(tmp_path / "in.zip", [(nested("zoe"), NOTEBOOK), *good, *entries])
        results = outcomes(path)
        assert results["zoe"] == GOOD and says in results["bo"], case


OUTSIDE = ("../../evil.ipynb", "/etc/evil.ipynb", "bo\\lora-math\\x.ipynb", "..", "C:\\x.ipynb")


@pytest.mark.parametrize("good", ["zoe.ipynb", nested("zoe")])
def test_a_zip_entry_outside_the_zip_is_refused_without_a_student(tmp_path, good):
    for name in OUTSIDE:
        results = outcomes(make_zip(tmp_path / "in.zip", [(name, NOTEBOOK), (good, NOTEBOOK)]))
        assert results.pop("zoe") == GOOD, name
        ((student, why),) = results.items()
        assert not valid_student(student) and "not a plain path" in why, name


def test_an_encrypted_entry_is_refused(tmp_path):
    path = make_zip(tmp_path / "in.zip", [(nested(s), NOTEBOOK) for s in ("bo", "zoe")])
    results = outcomes(change_flags(path, lambda flags: flags | 1, nested("bo")))
    assert "encrypted; make the zip without a password" in results["bo"] and results["zoe"] == GOOD


def zip_with_names_in_utf8(path, flagged, replaced=b""):
    """A zip with the names Zoë and bo/…/é; the bytes of é can be replaced by invalid UTF-8."""
    entries = [(nested("Zoë"), NOTEBOOK), (nested("bo"), NOTEBOOK), (f"bo/{A}/é", b"")]
    make_zip(path, entries)
    if not flagged:  # some systems write UTF-8 without the flag
        change_flags(path, lambda flags: flags & ~0x800)
    if replaced:
        folder = f"bo/{A}/".encode()
        path.write_bytes(path.read_bytes().replace(folder + "é".encode(), folder + replaced))
    return path


@pytest.mark.parametrize("flagged", [True, False])
def test_zip_names_in_utf8_are_read_with_or_without_the_flag(tmp_path, flagged):
    results = outcomes(zip_with_names_in_utf8(tmp_path / "in.zip", flagged))
    assert results == {"Zoë": GOOD, "bo": Files(NOTEBOOK, {"é": b""})}


def test_a_zip_name_that_is_not_utf8_refuses_only_its_submission(tmp_path):
    results = outcomes(zip_with_names_in_utf8(tmp_path / "in.zip", False, b"\xe9\xff"))
    assert results["Zoë"] == GOOD
    assert "not in UTF-8" in results["bo"] and "\\xe9" in results["bo"]


def test_a_zip_name_flagged_as_utf8_that_is_not_refuses_the_zip(tmp_path):
    with pytest.raises(SourceError, match="can't be read as a zip"):
        collect(zip_with_names_in_utf8(tmp_path / "in.zip", True, b"\xe9\xff"), A)


def test_the_size_in_the_zip_is_not_trusted(tmp_path):
    path = make_zip(tmp_path / "in.zip", [("bo.ipynb", b"ab" * 5000), ("zoe.ipynb", NOTEBOOK)])
    real = struct.pack("<I", 10_000)
    assert real in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(real, struct.pack("<I", 10)))
    results = outcomes(path)
    assert isinstance(results["bo"], str) and results["zoe"] == GOOD


def test_a_damaged_zip_entry_does_not_affect_the_others(tmp_path):
    path = make_zip(tmp_path / "in.zip", [("bo.ipynb", os.urandom(500)), ("zoe.ipynb", NOTEBOOK)])
    data = bytearray(path.read_bytes())
    data[60:200] = bytes(140)
    path.write_bytes(data)
    results = outcomes(path)
    assert "can't be unpacked" in results["bo"] and results["zoe"] == GOOD


def test_a_zip_with_too_many_entries_is_refused(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "in.zip", [(f"{i}.ipynb", b"") for i in range(200)])
    monkeypatch.setattr("course_pkg.grading.classroom.submissions.sources.MAX_ENTRIES", 100)
    with pytest.raises(SourceError, match="200 entries; at most 100"):
        collect(path, A)


@given(data=st.binary(max_size=400), cut=st.integers(0, 400), at=st.integers(0, 700))
def test_any_bytes_as_a_zip_raise_only_source_error_or_refused(tmp_path_factory, data, cut, at):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in (nested("bo"), nested("zoe"), f"zoe/{A}/x/y"):
            made.writestr(name, NOTEBOOK)
    whole = out.getvalue()
    path = tmp_path_factory.getbasetemp() / "random.zip"
    path.write_bytes(whole[:at] + data[:20] + whole[at + (cut % 30) :])
    with contextlib.suppress(SourceError):
        outcomes(path)
