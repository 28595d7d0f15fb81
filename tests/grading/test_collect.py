"""Hand-ins from folders and zips: every layout is read, nothing hostile is, one never stops all."""

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

from course_pkg.grading.submissions import collect as collect_module
from course_pkg.grading.submissions.collect import (
    Files,
    Refused,
    SourceError,
    collect,
    valid_student,
)
from course_pkg.grading.submissions.folders import Folder

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
    """A zip of (name or ZipInfo, bytes) pairs."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in entries:
            out.writestr(name, data)
    return path


def zipped(root, path):
    """The folder as a zip, everything below `root` by its relative path."""
    files = [p for p in sorted(root.rglob("*")) if p.is_file()]
    return make_zip(path, [(p.relative_to(root).as_posix(), p.read_bytes()) for p in files])


def outcomes(source, **options):
    """What each student's hand-in gives: the files, or why it is refused."""
    found = {}
    for hand_in in collect(source, A, **options):
        try:
            found[hand_in.student] = hand_in.read()
        except Refused as error:
            found[hand_in.student] = str(error)
    return found


GOOD = Files(NOTEBOOK, {})


@pytest.fixture
def source(tmp_path):
    """A folder with one good hand-in, of zoe, which must be read whatever lies beside it."""
    put(tmp_path / "in", nested("zoe"))
    return tmp_path / "in"


# Layouts


@pytest.mark.parametrize("packed", [False, True])
def test_nbgraders_layout_gives_notebook_and_data_sorted_by_student(source, tmp_path, packed):
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
    place = zipped(source, tmp_path / "in.zip") if packed else source
    assert outcomes(place) == {
        "bo": Files(NOTEBOOK, {"data/x.csv": b"1,2", "torch.py": b"shadow"}),
        "zoe": GOOD,
    }
    assert [h.student for h in collect(place, A)] == ["bo", "zoe"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_flat_folder_gives_notebooks(tmp_path, packed):
    for name in ("zoe.ipynb", "bo.b.ipynb", "notes.txt", "__MACOSX/._zoe.ipynb"):
        put(tmp_path / "in", name)
    place = zipped(tmp_path / "in", tmp_path / "in.zip") if packed else tmp_path / "in"
    assert outcomes(place) == {"bo.b": GOOD, "zoe": GOOD}


@pytest.mark.parametrize("packed", [False, True])
def test_a_notebook_in_capitals_is_one_too(tmp_path, packed):
    put(tmp_path / "in", "Ben.IPYNB")
    put(tmp_path / "in", "ada.ipynb")
    place = zipped(tmp_path / "in", tmp_path / "in.zip") if packed else tmp_path / "in"
    assert outcomes(place) == {"Ben": GOOD, "ada": GOOD}


def test_what_is_no_folder_has_no_children(source):
    assert Folder(source).children(("zoe", A, f"{A}.ipynb")) == {}


NAMES = ["Screenshot at 3.45\u202fPM.png", "図\u30001.png", "👩\u200d🔬.png", "Icon\r"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_systems_give_to_files_themselves_are_no_reason_to_refuse(
    source, tmp_path, name, packed
):
    put(source, f"zoe/{A}/{name}", b"1")
    place = zipped(source, tmp_path / "in.zip") if packed else source
    beside = {} if name == "Icon\r" else {name: b"1"}  # macOS's mark of a folder with an icon
    assert outcomes(place) == {"zoe": Files(NOTEBOOK, beside)}


def test_a_name_in_no_encoding_refuses_its_hand_in_alone(source):
    put(source, nested("bo"))
    with open(os.fsencode(source / "bo" / A) + b"/\xff.txt", "wb"):
        pass
    found = outcomes(source)
    assert found["zoe"] == GOOD and "not every system can write" in found["bo"]


def test_a_zip_of_a_whole_folder_is_looked_into(source, tmp_path):
    place = zipped(tmp_path, tmp_path.parent / f"{tmp_path.name}.zip")
    assert outcomes(place) == {"zoe": GOOD}
    with zipfile.ZipFile(place, "a") as out:
        out.writestr("../../evil.ipynb", b"x")
    assert outcomes(place) == {"zoe": GOOD}


def test_mixed_layouts_are_named(source):
    put(source, "bo.ipynb")
    with pytest.raises(SourceError, match=r"mixes two layouts: zoe/lora-math/ and bo\.ipynb"):
        collect(source, A)


@pytest.mark.parametrize(
    "path, says",
    [
        ("no/such", "does not exist"),
        ("in", "found in/zoe, zoe/lora-maths|found zoe/lora-maths; wanted <student>/lora-math/"),
        ("bad.zip", "can't be read as a zip"),
        ("empty", "holds no hand-in for lora-math: found nothing"),
    ],
)
def test_a_source_that_can_not_be_used_says_what_is_there(tmp_path, path, says):
    put(tmp_path / "in", "zoe/lora-maths/lora-maths.ipynb")
    put(tmp_path, "bad.zip", b"PK\3\4 not really")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=says):
        collect(tmp_path / path, A)


def test_a_missing_source_names_near_ones(source):
    with pytest.raises(SourceError, match=r"inn does not exist; in .*: in"):
        collect(source.with_name("inn"), A)


def test_students_are_kept_and_unknown_ones_named_with_near_ones(source):
    put(source, nested("bo"))
    assert list(outcomes(source, students=["bo"])) == ["bo"]
    with pytest.raises(SourceError, match=r"no hand-in of zo for lora-math; near: .*zoe"):
        collect(source, A, students=["zo", "bo"])


def test_files_are_read_when_read_is_called(source):
    (hand_in,) = collect(source, A)
    put(source, nested("zoe"), b"later")
    assert hand_in.read().notebook == b"later"
    shutil.rmtree(source / "zoe")
    with pytest.raises(Refused, match="can't be read"):
        hand_in.read()


# Names


@pytest.mark.parametrize(
    "files, says",
    [
        ([f"bo/{A}/Untitled.ipynb"], "found Untitled.ipynb; wanted lora-math.ipynb"),
        (
            [f"bo/{A}/a.ipynb", f"bo/{A}/LoRA-Math.ipynb"],
            "found LoRA-Math.ipynb, a.ipynb; wanted lora-math.ipynb",
        ),
        ([f"bo/{A}/notes.txt"], "found no notebook; wanted lora-math.ipynb"),
        ([f"bo/{A}.ipynb"], "found bo/lora-math.ipynb; wanted bo/lora-math/lora-math.ipynb"),
        (["bo/LoRA_math/x.ipynb"], "found bo/LoRA_math; wanted bo/lora-math/lora-math.ipynb"),
        ([f"bo/{A}/{A}.ipynb/x"], "found no notebook; wanted lora-math.ipynb"),
    ],
)
def test_a_wrong_name_says_what_is_there_and_what_is_wanted(source, files, says):
    for name in files:
        put(source, name)
    found = outcomes(source)
    assert says in found["bo"]
    assert found["zoe"] == GOOD


@pytest.mark.parametrize(
    "student",
    ["ada", "Zoë", "陈伟", "o'neill", "a.b-c_d@uni.edu", "x+y", "7up", "a b", "प्रिया", "a" * 64],
)
def test_ids_of_people_are_valid(student):
    assert valid_student(student)


@pytest.mark.parametrize(
    "student",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a..b",
        "=1",
        "+1",
        "-1",
        "@a",
        ".a",
        "~a",
        "'a",
        " a",
        "a ",
        "a.",
        "*",
        "a*",
        "a?",
        "[a]",
        "a\nb",
        "a\0",
        "a\u202eb",
        "a\u200bb",
        "Zoe\u0308",
        "a\ud800",
        "a" * 65,
        "陈" * 64 + "a",
        "𝒜" * 64,
        "a\u3164b",
        "a\ufe0f",
        "a;b",
        'a"b',
        "<b>",
        "a:b",
        "$a",
        "a\tb",
        "a%b",
        "a|b",
        "a&b",
        "{a}",
        "a,b",
    ],
)
def test_ids_that_are_paths_formulas_patterns_or_not_what_they_seem_are_not(student):
    assert not valid_student(student)


@given(st.text(max_size=70))
def test_a_valid_id_is_one_plain_file_name(student):
    if valid_student(student):
        assert os.path.basename(student) == student and student.isprintable()
        assert student[0] not in "=+-@.~" and not set(student) & set("*?[]/\\\0")
        assert len(os.fsencode(student)) <= 200


@pytest.mark.parametrize("name", ["=cmd|x", "a*b", "a\nb", "-rf", "..x", "a\u202eb", b"a\xff"])
def test_an_impossible_id_is_refused_and_shown_escaped(source, name):
    raw = os.fsencode(name)
    place = os.path.join(os.fsencode(source), raw, A.encode())
    os.makedirs(place)
    with open(os.path.join(place, f"{A}.ipynb".encode()), "wb") as file:
        file.write(NOTEBOOK)
    found = outcomes(source)
    assert found.pop("zoe") == GOOD
    ((student, why),) = found.items()
    assert not valid_student(student) and student.isprintable()
    assert "is no possible id of a student" in why


def test_a_name_in_decomposed_form_is_the_composed_id(tmp_path):
    put(tmp_path, nested("Zoe\u0308"))
    assert outcomes(tmp_path) == {"Zo\u00eb": GOOD}


def test_ids_equal_but_for_case_or_composition_are_both_refused(source):
    for name in ("Ada", "ada", "Zo\u00eb", "Zoe\u0308"):
        put(source, nested(name))
    found = outcomes(source)
    assert found.pop("zoe") == GOOD
    assert len(found) == 4 and all("2 hand-ins have the id" in why for why in found.values())
    assert [valid_student(student) for student in found].count(False) == 1  # the decomposed one


# What is no plain file


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


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_plain_file_is_refused_by_name_and_not_waited_for(source, tmp_path, case):
    secret = put(tmp_path / "secret", "secret.txt", b"SECRET")
    HOSTILE[case](source / "bo" / A, secret)
    found = outcomes(source)
    assert found.pop("zoe") == GOOD
    assert isinstance(found["bo"], str) and "SECRET" not in found["bo"]
    assert "bo" in found["bo"]  # names the file


def test_a_pipe_as_time_stamp_is_not_waited_for(source):
    os.mkfifo(source / "zoe" / A / "timestamp.txt")
    (hand_in,) = collect(source, A)
    assert hand_in.timestamp is None and hand_in.read() == GOOD


def test_a_link_alone_is_a_refused_hand_in_too(tmp_path):
    link(tmp_path / "bo.ipynb", "/etc/passwd")
    assert "bo.ipynb is a link" in outcomes(tmp_path)["bo"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a device")
def test_a_device_is_refused_unopened(source):
    put(source, nested("bo"))
    os.mknod(source / "bo" / A / "x", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    assert "is a device" in outcomes(source)["bo"]


def test_a_file_exchanged_for_a_link_between_listing_and_reading_is_refused(source, tmp_path):
    secret = put(tmp_path / "secret", f"{A}.ipynb", b"SECRET")
    (hand_in,) = collect(source, A)
    shutil.rmtree(source / "zoe" / A)
    link(source / "zoe" / A, secret.parent)
    with pytest.raises(Refused, match="is a link"):
        hand_in.read()


def test_an_exchange_in_the_very_moment_of_opening_is_refused(source, tmp_path, monkeypatch):
    secret = put(tmp_path / "secret", "secret.txt", b"SECRET")
    (hand_in,) = collect(source, A)
    target, real = source / nested("zoe"), os.stat

    def stat_then_swap(path, *args, **options):
        found = real(path, *args, **options)
        if path == f"{A}.ipynb":
            target.unlink(missing_ok=True)
            target.symlink_to(secret)
        return found

    monkeypatch.setattr(os, "stat", stat_then_swap)
    with pytest.raises(Refused):
        hand_in.read()


def test_no_descriptor_is_left_open(source):
    for case in HOSTILE:
        HOSTILE[case](source / case.replace(" ", "-") / A, put(source.parent, "s/secret.txt"))
    outcomes(source)
    before = len(os.listdir("/proc/self/fd"))
    outcomes(source)
    assert len(os.listdir("/proc/self/fd")) == before


# Limits


def test_sizes_counts_and_the_sum_are_limited(source, monkeypatch):
    monkeypatch.setattr(collect_module, "MAX_NOTEBOOK", 100)
    monkeypatch.setattr(collect_module, "MAX_BYTES", 300)
    monkeypatch.setattr(collect_module, "MAX_FILES", 10)
    put(source, nested("long"), b"x" * 101)
    put(source, nested("many"))
    for i in range(10):
        (source / "many" / A / f"d{i}").mkdir()
    put(source, nested("sum"))
    put(source, f"sum/{A}/a", b"x" * 150)
    put(source, f"sum/{A}/b", b"x" * 150)
    found = outcomes(source)
    assert found.pop("zoe") == GOOD
    assert "long/lora-math/lora-math.ipynb is too long: at most 100 bytes" in found["long"]
    assert "more than 10 files" in found["many"]
    assert "is too long" in found["sum"]


def test_a_file_that_never_ends_is_read_up_to_the_limit(source):
    with open(source / nested("zoe"), "wb") as file:
        file.truncate(1 << 40)  # sparse
    assert "is too long: at most 16,777,216 bytes" in outcomes(source)["zoe"]


# Time stamps


@pytest.mark.parametrize(
    "text, expected",
    [
        (b"2026-01-02 03:04:05.5 UTC", datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)),
        (b"2026-01-02 03:04:05 America/New_York\n", datetime(2026, 1, 2, 8, 4, 5, 0, UTC)),
        (b"2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, 0, UTC)),
        (b"2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5, 0, UTC)),
        (b"yesterday", None),
        (b"2026-01-02 03:04:05 /etc/passwd", None),
        (b"2026-01-02 03:04:05 ../../etc/passwd", None),
        (b"2026-01-02 03:04:05 __init__/x", None),
        (b"2026-01-02 03:04:05 tzdata", None),
        (b"0001-01-01 00:00:00+23:59", None),
        (b"\xff\xfe", None),
        (b"9" * 1000, None),
        (b"", None),
    ],
)
def test_nbgraders_time_stamp_is_a_time_or_none(source, text, expected):
    put(source, f"zoe/{A}/timestamp.txt", text)
    (hand_in,) = collect(source, A)
    assert hand_in.timestamp == expected
    assert hand_in.read() == GOOD


# Zips


def entry(name, mode=0, **fields):
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def patched(path, *changes):
    """The zip's bytes with some of them replaced; each must be there."""
    data = path.read_bytes()
    for old, new in changes:
        assert old in data
        data = data.replace(old, new)
    path.write_bytes(data)
    return path


def flag_encrypted(path, name):
    """Mark one entry as encrypted, in its own header and in the table of contents."""
    data = bytearray(path.read_bytes())
    for signature, flags, at in ((b"PK\3\4", 6, 30), (b"PK\1\2", 8, 46)):
        i = -1
        while (i := data.find(signature, i + 1)) >= 0:
            if data[i + at : i + at + len(name)] == name.encode():
                data[i + flags] |= 1
    path.write_bytes(data)


ZIP_CASES = {
    "up and away": ([(f"bo/{A}/../../zoe/x", b"x")], "no plain path"),
    "empty part": ([(f"bo/{A}//x", b"x")], "no plain path"),
    "dot": ([(f"bo/{A}/./x", b"x")], "no plain path"),
    "beside the assignment": ([("bo/../zoe/lora-math/lora-math.ipynb", b"x")], "no plain path"),
    "backslash inside": ([(f"bo/{A}/..\\x", b"x")], "no plain path"),
    "a link": ([(entry(f"bo/{A}/x", stat.S_IFLNK | 0o777), b"/etc/passwd")], "is a link"),
    "a pipe": ([(entry(f"bo/{A}/x", stat.S_IFIFO | 0o666), b"")], "is a pipe"),
    "twice": ([(f"bo/{A}/x", b"1"), (f"bo/{A}/x", b"2")], "more than once"),
    "file and folder": ([(f"bo/{A}/x", b"1"), (f"bo/{A}/x/y", b"2")], "both a file and a folder"),
    "bzip2": ([(entry(f"bo/{A}/x", compress_type=zipfile.ZIP_BZIP2), b"1")], "an unusual way"),
    "lzma": ([(entry(f"bo/{A}/x", compress_type=zipfile.ZIP_LZMA), b"1")], "an unusual way"),
    "a bomb": ([(f"bo/{A}/x", bytes(4 * collect_module.MIB))], "far more than it holds"),
    "many": ([(f"bo/{A}/{i}", b"") for i in range(1001)], "more than 1,000 files"),
    "deep": ([(f"bo/{A}/" + "a/" * 17 + "x", b"")], "16 folders deep"),
    "deeper than any path": ([(f"bo/{A}/" + "a/" * 500 + "x", b"")], "folders deep|no plain path"),
    "a control": ([(f"bo/{A}/a\nb", b"")], "not every system can write"),
    "link as notebook": ([(entry(nested("bo"), stat.S_IFLNK | 0o777), b"/etc/passwd")], "a link"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", ZIP_CASES)
def test_one_bad_entry_of_a_zip_refuses_its_hand_in_alone(tmp_path, case):
    entries, says = ZIP_CASES[case]
    good = [] if "link as notebook" in case else [(nested("bo"), NOTEBOOK)]
    path = make_zip(tmp_path / "in.zip", [(nested("zoe"), NOTEBOOK), *good, *entries])
    found = outcomes(path)
    assert found["zoe"] == GOOD
    assert isinstance(found["bo"], str)
    assert any(part in found["bo"] for part in says.split("|")), found["bo"]


@pytest.mark.parametrize(
    "name", ["../../evil.ipynb", "/etc/evil.ipynb", "bo\\lora-math\\x.ipynb", "..", "C:\\x.ipynb"]
)
@pytest.mark.parametrize("flat", [False, True])
def test_a_zips_name_that_leads_away_is_a_refused_hand_in_of_nobody(tmp_path, name, flat):
    good = "zoe.ipynb" if flat else nested("zoe")
    found = outcomes(make_zip(tmp_path / "in.zip", [(name, NOTEBOOK), (good, NOTEBOOK)]))
    assert found.pop("zoe") == GOOD
    ((student, why),) = found.items()
    assert not valid_student(student) and "no plain path" in why


def test_an_encrypted_entry_is_refused(tmp_path):
    path = make_zip(tmp_path / "in.zip", [(nested(s), NOTEBOOK) for s in ("bo", "zoe")])
    flag_encrypted(path, nested("bo"))
    found = outcomes(path)
    assert "encrypted; make the zip without a password" in found["bo"] and found["zoe"] == GOOD


@pytest.mark.parametrize("flagged", [True, False])
def test_names_in_utf8_are_read_with_the_flag_or_without_and_others_refused(tmp_path, flagged):
    entries = [(nested("Zoë"), NOTEBOOK), (nested("bo"), NOTEBOOK), (f"bo/{A}/é", b"")]
    path = make_zip(tmp_path / "in.zip", entries)
    data = path.read_bytes()
    if not flagged:  # as some systems write UTF-8
        for signature, at in ((b"PK\3\4", 7), (b"PK\1\2", 9)):
            pieces = data.split(signature)
            data = signature.join([pieces[0], *(cleared(p, at - 4) for p in pieces[1:])])
    path.write_bytes(data.replace(f"bo/{A}/é".encode(), f"bo/{A}/".encode() + b"\xe9\xff"))
    found = outcomes(path)
    assert found["Zoë"] == GOOD
    assert "no plain path" in found["bo"] and "\\xe9" in found["bo"]


def cleared(piece, at):
    return piece[:at] + bytes([piece[at] & ~0x08]) + piece[at + 1 :]


def test_a_size_that_a_zip_claims_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(collect_module, "MAX_NOTEBOOK", 5000)
    path = make_zip(tmp_path / "in.zip", [("bo.ipynb", b"ab" * 5000), ("zoe.ipynb", NOTEBOOK)])
    patched(path, (struct.pack("<I", 10_000), struct.pack("<I", 10)))
    found = outcomes(path)
    assert isinstance(found["bo"], str) and found["zoe"] == GOOD


def test_entries_that_lie_over_each_other_are_refused(tmp_path):
    path = make_zip(tmp_path / "in.zip", [(n, NOTEBOOK) for n in ("bo.ipynb", "cy.ipynb")])
    with zipfile.ZipFile(path) as read:
        first, second = (info.header_offset for info in read.infolist())
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\1\2")
    assert struct.unpack_from("<I", data, at + 42) == (second,)
    struct.pack_into("<I", data, at + 42, first)
    path.write_bytes(data)
    found = outcomes(path)
    assert "lies over another entry" in found["bo"] and "lies over another entry" in found["cy"]


def test_a_broken_entry_stops_no_other(tmp_path):
    path = make_zip(tmp_path / "in.zip", [("bo.ipynb", os.urandom(500)), ("zoe.ipynb", NOTEBOOK)])
    data = bytearray(path.read_bytes())
    data[60:200] = bytes(140)
    path.write_bytes(data)
    found = outcomes(path)
    assert "can't be unpacked" in found["bo"] and found["zoe"] == GOOD


def test_a_zip_of_too_many_entries_or_too_long_a_table_is_refused(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "in.zip", [(f"{i}.ipynb", b"") for i in range(200)])
    for limit, most in (("MAX_ENTRIES", 100), ("MAX_TABLE", 1000), ("MAX_NODES", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(f"course_pkg.grading.submissions.zips.{limit}", most)
            with pytest.raises(SourceError, match="can't be read as a zip"):
                collect(path, A)


@given(data=st.binary(max_size=400), cut=st.integers(0, 400), at=st.integers(0, 700))
def test_whatever_the_bytes_of_a_zip_only_the_two_errors_come(tmp_path_factory, data, cut, at):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in (nested("bo"), nested("zoe"), f"zoe/{A}/x/y"):
            made.writestr(name, NOTEBOOK)
    whole = out.getvalue()
    path = tmp_path_factory.getbasetemp() / "random.zip"
    path.write_bytes(whole[:at] + data[:20] + whole[at + (cut % 30) :])
    with contextlib.suppress(SourceError):
        outcomes(path)
