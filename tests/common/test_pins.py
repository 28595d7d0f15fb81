"""Pins are read for this system only, and compared with the installed packages."""

from importlib import metadata

from course_pkg.common.pins import mismatches, read_pins

FILE = """
# comment
pytest==8.0.0
with-hash==1.0 \\
    --hash=sha256:abc
everywhere==2.0 ; python_version >= "3"  # and why
nowhere==3.0 ; sys_platform == "plan9"
ranged>=4.0
-r other.txt
"""


def test_pins_are_read_with_their_markers():
    assert read_pins(FILE) == {"pytest": "8.0.0", "with-hash": "1.0", "everywhere": "2.0"}


def test_local_version_labels_are_ignored(monkeypatch):
    assert mismatches({"pytest": metadata.version("pytest")}) == []
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
    assert mismatches({"torch": "2.13.0"}) == []


def test_different_and_missing_packages_are_listed():
    installed = metadata.version("pytest")
    assert mismatches({"pytest": "0.1", "not-there": "2"}) == [
        f"pytest: {installed}, expected 0.1",
        "not-there: not installed, expected 2",
    ]
