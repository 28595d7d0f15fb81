"""`course serve` as a process: why it does not start, and how it ends."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import openai
import pytest
import torch
from typer.testing import CliRunner

from course_pkg.acceleration.quantization.gptq_files import save_gptq
from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.acceleration.quantization.layerwise import RoundToNearest, quantize_layers
from course_pkg.adapters.adapter_io import save_adapter
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, save
from course_pkg.cli import app
from course_pkg.deployment.api_errors import ServeError
from course_pkg.deployment.load_engine import load_engine, quantization_note, weights_dtype
from course_pkg.deployment.serve import read_key
from course_pkg.deployment.server import bind
from course_pkg.lm import smollm2
from course_pkg.lm.load import load
from course_pkg.lm.model_errors import ModelError
from course_pkg.metrics.paired_loss import loss_change
from course_pkg.pages.experiments import load_experiment
from tests.tables import each_row
from tests.waiting import wait_until

from .live import KEY, PATIENCE, chat, complete, serving


def refusal(*arguments):
    """What a server that cannot start prints."""
    result = CliRunner().invoke(app, ["serve", "--model", "tiny", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    [line] = result.output.splitlines()
    return line


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("COURSE_API_KEY", raising=False)


@each_row(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "set COURSE_API_KEY or give --key-file"),
        (["--cache-memory", 1e9], "this machine has"),
        (["--model", "tinny"], 'there is no model "tinny"'),
        (["--model", "{folder}"], "no config.json"),
        (["--allowed-origins", "*"], "without a key"),
        (["--allowed-origins", "example.org"], "expected a scheme"),
        (["--chat-template", "{folder}/missing"], "cannot be read"),
        (["--dtype", "int8"], "--dtype int8: expected auto, float32"),
        (["--adapter", "poet"], "--adapter poet: expected name=folder"),
        (["--adapter", "a b=x"], "adapter name 'a b' is invalid"),
        (["--adapter", f"{'a' * 65}=x"], "at most 64"),
        (["--adapter", "tiny=x"], "the name tiny is taken"),
        (["--adapter", "a=/nowhere"], "there is no folder /nowhere"),
        (["--quantize", "int2"], "--quantize int2: expected int8 or int4"),
        (["--quantize", "int4", "--dtype", "float32"], "activations have 16 bits; leave it out"),
    ],
)
def test_why_it_does_not_start(arguments, message, tmp_path):
    arguments = [str(argument).replace("{folder}", str(tmp_path)) for argument in arguments]
    assert message in refusal("--port", 0, *arguments)


def test_a_port_is_taken_as_soon_as_it_is_bound_and_too_large_a_cache_is_named(monkeypatch):
    with bind("127.0.0.1", 0) as first:  # its model is still loading
        port = first.getsockname()[1]
        assert f"127.0.0.1 port {port} is not available" in refusal("--port", port)

    def engine(*_, **__):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr("course_pkg.deployment.load_engine.Engine", engine)
    assert "can't allocate memory" in refusal("--port", 0)


def test_adapters_are_checked_before_the_model_is_loaded(monkeypatch, tmp_path):
    ia3 = IA3Config(target_modules=["k_proj"], feedforward_modules=[])
    for name, config in {"ia3": ia3, "head": LoRAConfig(2, target_modules=["lm_head"])}.items():
        save(adapt(load("tiny").model, config), tmp_path / name)
    cut = adapter(tmp_path / "cut") / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-9])

    def loads(*_, **__):
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("course_pkg.deployment.load_engine.load", loads)
    for source, message in {
        f"a={tmp_path}": "is not an adapter folder",
        f"a={tmp_path / 'ia3'}": "is IA³: the engine takes LoRA",
        f"a={tmp_path / 'head'}": "changes lm_head",
        f"a={tmp_path / 'cut'}": f"{cut} is damaged",
    }.items():
        assert message in refusal("--port", 0, "--adapter", source)


def test_the_models_own_type_is_used_on_a_gpu(tmp_path, monkeypatch):
    model, tokenizer = load("tiny", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert weights_dtype("auto", str(tmp_path), None) == torch.float32
    gpu = torch.device("cuda")
    monkeypatch.setattr("course_pkg.deployment.load_engine.pick_device", lambda device: gpu)
    assert weights_dtype("auto", str(tmp_path), "cuda") == torch.bfloat16
    assert weights_dtype("float16", str(tmp_path), "cuda") == torch.float16
    engine = load_engine(str(tmp_path), {}, None, cache_gb=0.001, running=2, dtype="bfloat16")
    assert engine.runner.caches[0][0].dtype == torch.bfloat16


def test_a_gptq_checkpoint_is_served_as_it_is(tmp_path):
    model, tokenizer = load("tiny")
    quantize_layers(model, RoundToNearest(Grid(4, 32)))
    save_gptq(model, tmp_path)
    with pytest.raises(ModelError, match=r"has no tokenizer.json: save the tokenizer there"):
        load_engine(str(tmp_path), {}, None, cache_gb=0.001, running=2)
    tokenizer.save_pretrained(tmp_path)
    engine = load_engine(str(tmp_path), {}, None, cache_gb=0.001, running=2)
    layer = engine.runner.decoder.layers[1].mlp.up_proj
    assert layer.quantized.describe() == "4 bits, groups of 32"
    assert engine.runner.caches[0][0].dtype == torch.bfloat16
    with pytest.raises(ServeError, match="are quantized already"):
        load_engine(str(tmp_path), {}, None, cache_gb=0.001, running=2, quantize="int8")


@each_row("quantize", ["int8", "int4"])
def test_weights_are_quantized_if_asked(quantize):
    engine = load_engine("tiny", {}, None, cache_gb=0.001, running=2, quantize=quantize)
    assert not engine.runner.decoder.layers[0].mlp.gate_up_proj.weight.is_floating_point()


@each_row("quantize", ["int8", "int4"])
def test_the_log_says_what_the_recorded_experiment_measured(quantize):
    record = load_experiment("quantized_smollm2")
    [row] = record.select(method="served", format=quantize)
    [exact] = record.select(method="none")
    losses, tokens, others = zip(*row["plain"], strict=True)
    change = loss_change(losses, [text[0] for text in exact["plain"]], tokens)
    note = quantization_note(smollm2.NAME, quantize)
    assert f"by {change} nats per token, and {sum(others) / sum(tokens):.1%} of" in note


def test_a_model_without_a_chat_template_is_served_with_a_warning(tmp_path, monkeypatch, caplog):
    def starts(self, sockets):
        assert self.service.models()[0]["id"] == "mine"
        sockets[0].close()

    monkeypatch.setattr("course_pkg.deployment.serve.Server.run", starts)
    arguments = ["--model", plain_model(tmp_path), "--port", "0", "--served-model-name", "mine"]
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert result.exit_code == 0 and result.output.startswith("serving mine on ")
    assert "mine has no chat template" in caplog.text


@each_row("option", ["--max-prompt-tokens", "--max-prompt"])
def test_the_longest_prompt_reaches_the_server(option, monkeypatch):
    def starts(self, sockets):
        limits.append(self.service.limits.prompt_tokens)
        sockets[0].close()

    limits = []
    monkeypatch.setattr("course_pkg.deployment.serve.Server.run", starts)
    arguments = ["serve", "--model", "tiny", "--port", "0", "--cache-memory", "0.001"]
    result = CliRunner().invoke(app, [*arguments, option, "30"])
    assert result.exit_code == 0 and limits == [30], result.output


def plain_model(folder):
    model, tokenizer = load("tiny")
    tokenizer.chat_template = None
    for part in (model, tokenizer):
        part.save_pretrained(folder / "plain")
    return folder / "plain"


def adapter(folder, **config):
    model, _ = load("tiny")
    inject(model, LoRAConfig(rank=4, alpha=8, **config))
    save_adapter(model, folder)
    return folder


def test_an_adapter_and_a_chat_template_that_do_not_fit_are_named(tmp_path):
    folder = adapter(tmp_path)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace("q_proj", "query_projection"))
    line = refusal("--port", 0, "--adapter", f"poet={folder}")
    assert f"{folder} does not fit" in line
    (folder / "adapter_model.safetensors").unlink()
    assert "no adapter_model.safetensors" in refusal("--port", 0, "--adapter", f"poet={folder}")
    file = tmp_path / "template"
    for text in ("{% if", " "):
        file.write_text(text)
        assert f"--chat-template {file}" in refusal("--port", 0, "--chat-template", file)


def test_keys_are_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    assert read_key(None) is None
    monkeypatch.setenv("COURSE_API_KEY", KEY)
    assert read_key(None) == KEY
    file = tmp_path / "key"
    file.write_text("another-key-that-is-long\n")
    assert read_key(file) == "another-key-that-is-long"
    for wrong in ("", "short", "x" * 16 + " y", "é" * 16):
        file.write_text(wrong)
        with pytest.raises(ServeError, match="at least 16 characters"):
            read_key(file)
    with pytest.raises(ServeError, match="cannot be read"):
        read_key(tmp_path / "missing")


@contextmanager
def process(*arguments, **environment):
    """A server in a process, and its address."""
    command = [sys.executable, "-m", "course_pkg", "serve", "--port", "0"]
    command += map(str, arguments)
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = subprocess.Popen(command, text=True, env=environment, **pipes)
    try:
        line = running.stdout.readline()
        yield running, re.search(r"http://\S+/v1", line)[0], line
    finally:
        running.kill()
        running.communicate()


def test_sigterm_finishes_running_requests_and_refuses_new_ones(tmp_path):
    folder = adapter(tmp_path / "poet")
    template = tmp_path / "template"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    arguments = ["--model", plain_model(tmp_path), "--served-model-name", "mine"]
    arguments += ["--chat-template", template, "--adapter", f"poet={folder}"]
    with process(*arguments, COURSE_API_KEY=KEY) as (server, url, line):
        assert line.startswith("serving mine, poet on http://127.0.0.1:") and KEY not in line
        client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
        answer = chat(client, model="mine", max_tokens=1)
        assert answer.usage.prompt_tokens == 2  # as the template writes "Hi"
        # More bytes than the sockets' buffers take, so it is open until it is read.
        events = iter(complete(client, model="poet", max_tokens=400, logprobs=20, stream=True))
        next(events)
        server.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=url.removesuffix("v1"), timeout=PATIENCE) as http:
            wait_until(lambda: http.get("ready").status_code == 503, PATIENCE)
            assert http.get("health").status_code == 200
        with pytest.raises(openai.InternalServerError, match="shutting down") as refused:
            complete(client, model="poet")
        assert refused.value.status_code == 503
        assert "retry-after" in refused.value.response.headers
        rest = list(events)
        assert rest[-1].choices[0].finish_reason == "length"
        client.close()
        assert server.wait(PATIENCE) == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_what_runs_too_long_is_ended(signals):
    with serving(shutdown_seconds=0.001 if signals == 1 else PATIENCE) as live:
        with live.held(3):
            stream = complete(live.client(), max_tokens=2000, n=8, stream=True)
            next(iter(stream))
            for _ in range(signals):
                live.server.handle_exit(signal.SIGTERM, None)
        with pytest.raises(openai.APIError, match="the server stops"):
            list(stream)
