"""A model's folder before anything reads it whole: its files may be anybody's.

A link to a device never ends, and a config.json of a billion layers fills the memory before a
weight is read. Both are refused here, by the kind and the size of the files.
"""

from pathlib import Path
from typing import Any

from course_pkg.common.files import readable_size
from course_pkg.common.json_reading import parse_json
from course_pkg.lm.model_errors import CorruptModelError

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
SETTINGS = (".json", ".jinja", ".txt", ".model")  # the ends of files that are read whole
WEIGHTS = (".safetensors", ".bin")
LONGEST = 2**28  # bytes of a file of settings; the tokenizers of large vocabularies have 2**25
# The names in config.json of what has modules of its own, and how few bytes of weights one has.
COUNTED = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_experts")
FEWEST = 64


def check_folder(folder: Path) -> dict[str, Any]:
    """What config.json says. Raises CorruptModelError for files that can't be a model's."""
    stored = check_files(folder)
    config = read_settings(folder / CONFIG)
    vocabulary, width = (config.get(name) for name in ("vocab_size", "hidden_size"))
    if isinstance(vocabulary, int) and isinstance(width, int) and vocabulary * width > 8 * stored:
        raise _too_large(folder, f"an embedding of {vocabulary} × {width} numbers", stored)
    for part in (config, config.get("text_config")):
        for name in COUNTED if isinstance(part, dict) else ():
            count = part.get(name)
            if isinstance(count, int) and count * FEWEST > stored:
                raise _too_large(folder, f"{name} {count}", stored)
    return config


def check_files(folder: Path) -> int:
    """The bytes of a folder's weights. Raises CorruptModelError for one that is no regular file."""
    stored = 0
    for file in sorted(folder.iterdir()):
        if file.suffix in (*SETTINGS, *WEIGHTS) and not file.is_dir():
            size = regular_size(file)
            stored += size if file.suffix in WEIGHTS else 0
    return stored


def read_settings(file: Path) -> dict[str, Any]:
    """The dictionary in a file of JSON. Raises CorruptModelError if it has something else."""
    regular_size(file)
    try:
        settings = parse_json(file.read_bytes())
    except (ValueError, OSError) as error:
        raise CorruptModelError(f"{file} cannot be read ({error}): copy it again") from None
    if not isinstance(settings, dict):
        raise CorruptModelError(f"{file} cannot be read ({file.name} is not a dictionary)")
    return settings


def regular_size(file: Path) -> int:
    """The bytes of a file. Raises CorruptModelError unless it is one, of a size to be read whole.

    >>> regular_size(Path("/dev/zero"))
    Traceback (most recent call last):
    ...
    course_pkg.lm.model_errors.CorruptModelError: /dev/zero is not a file: copy the folder again
    """
    if not file.is_file():
        raise CorruptModelError(f"{file} is not a file: copy the folder again")
    size = file.stat().st_size
    if file.suffix in SETTINGS and size > LONGEST:
        raise CorruptModelError(
            f"{file} has {readable_size(size)}, at most {readable_size(LONGEST)} are read: copy it "
            "again"
        )
    return size


def _too_large(folder: Path, what: str, stored: int) -> CorruptModelError:
    return CorruptModelError(
        f"{folder} cannot be read: {CONFIG} has {what}, for which {readable_size(stored)} of "
        "weights are too few; copy the whole folder again"
    )
