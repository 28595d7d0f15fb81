"""What requirements.txt pins, and which installed packages differ from it.

It reads exact pins (`name==version`) with their environment markers, and ignores hashes, options
and ranges.
"""

import re
from importlib import metadata

PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([^\s;#\\]+)\s*(?:;([^#\\]*))?")


def read_pins(text: str) -> dict[str, str]:
    """The names and versions that a requirements file pins for this system."""
    from packaging.markers import Marker

    pins = {}
    for line in text.splitlines():
        if (pin := PIN.match(line.strip())) is None:
            continue
        name, version, marker = pin.groups(default="")
        if not marker.strip() or Marker(marker).evaluate():
            pins[name] = version
    return pins


def mismatches(pins: dict[str, str]) -> list[str]:
    """One line for each pinned package that is missing or has a different version.

    Local version labels are ignored: 2.13.0+cpu counts as 2.13.0.
    """
    differences = []
    for name, pinned in pins.items():
        try:
            installed = metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            installed = "not installed"
        if installed != pinned:
            differences.append(f"{name}: {installed}, expected {pinned}")
    return differences
