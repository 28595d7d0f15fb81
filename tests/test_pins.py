"""Pins are read for this system alone, and compared with what is installed."""

from importlib import metadata

from course_pkg.pins import mismatches, read_pins

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


def test_an_installed_version_matches_itself_whatever_its_local_label(monkeypatch):
    assert mismatches({"pytest": metadata.version("pytest")}) == []
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
    assert mismatches({"torch": "2.13.0"}) == []


def test_a_different_and_an_absent_package_are_told():
    installed = metadata.version("pytest")
    assert mismatches({"pytest": "0.1", "not-there": "2"}) == [
        f"pytest {installed}, not 0.1",
        "not-there absent, not 2",
    ]
