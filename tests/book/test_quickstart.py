"""The commands of the quick start run as the page shows them, and print what it shows."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.finetuning.own_data.data_file import read_data
from tests.book.support import ROOT
from tests.waiting import wait_until

PAGE = (ROOT / "book" / "quickstart.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(bash|text|json|toml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[−+-]?\d[\d.,]*")


def commands():
    """Each command of the page with the output that it shows below, "" without one."""
    found = []
    for kind, text in BLOCKS:
        if kind == "bash":
            lines = text.replace("\\\n", " ")
            lines = re.sub(r"\n +", " ", lines).strip().split("\n")
            found += [[line, ""] for line in lines]
        elif kind == "text":
            found[-1][1] = text
    return [pair for pair in found if pair[0].startswith(("course", "echo", "curl"))]


def shape(text):
    """The words of a text, with # for each number; lines may be broken elsewhere."""
    return NUMBER.sub("#", text).split()


class Shell:
    """Runs the page's commands in this process, and the server in another."""

    def __init__(self, port, model):
        self.port = port
        self.model = model
        self.server = None

    def run(self, line):
        """What a command prints."""
        if line.startswith("curl"):
            return self._curl(shlex.split(line))
        text, _, command = line.rpartition(" | ")
        words = shlex.split(command)[1:]
        if self.model == "tiny":
            words = [{"40": "6"}.get(word, word) for word in words]
            name = "--base" if words[0] == "export" else "--model"
            words += [] if "--compare" in words else [name, "tiny"]
            words += ["--steps", "2"] if words[0] == "finetune" else []
        if words[0] == "serve":
            return self._serve([*words, "--port", str(self.port)])
        given = " ".join(shlex.split(text)[1:])
        done = CliRunner().invoke(app, words, input=given)
        assert done.exit_code in (0, 1 if self.model == "tiny" else 0), done.output
        return done.stdout

    def _serve(self, words):
        self.server = subprocess.Popen([sys.executable, "-m", "course_pkg", *words])
        wait_until(self._is_ready, seconds=300)
        return ""

    def _is_ready(self):
        assert self.server.poll() is None, "the server has ended"
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _curl(self, words):
        url = words[1].replace(":8000/", f":{self.port}/")
        body = words[words.index("-d") + 1]
        answer = httpx.post(url, json=json.loads(body), timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.text

    def stop(self):
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            assert self.server.wait(60) == 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "course_pkg").symlink_to(ROOT / "course_pkg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    [task] = [text for kind, text in BLOCKS if kind == "toml"]
    (tmp_path / "mine.toml").write_text(task)
    [item] = re.findall(r"# such as ({.*})", task)
    (tmp_path / "questions.jsonl").write_text(item)
    mails = [f"Order {number},When?,On day {number}." for number in range(5)]
    (tmp_path / "mail.csv").write_text("\n".join(["subject,body,reply", *mails]))
    return tmp_path


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_page(shell):
    """The page's commands, without the last, which is for a reader's file; and what they print."""
    *steps, last = commands()
    assert last[0] == "course finetune mine.jsonl"
    try:
        return [(line, shown, shell.run(line)) for line, shown in steps]
    finally:
        shell.stop()


@pytest.mark.slow
def test_the_commands_run_one_after_the_other_with_the_tiny_model(folder, port):
    found = run_page(Shell(port, "tiny"))
    kinds = [line.split()[0:2] for line, _, _ in found]
    assert [kind[1] for kind in kinds if kind[0] == "course"] == [
        *("finetune", "serve", "eval", "eval", "eval", "eval", "export", "finetune")
    ]
    finetune = next(text for line, _, text in found if "finetune" in line)
    shown = next(shown for line, shown, _ in found if "finetune" in line)
    words = shape(shown)
    assert len(words) > 50 and shape(finetune)[: len(words)] == words
    names = {path.name for path in folder.iterdir()}
    assert {"navigator", "before", "after", "navigator-f16.gguf"} <= names


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.minutes
@pytest.mark.timeout(1800)
def test_the_commands_print_what_the_page_shows(folder, port):
    for line, shown, text in run_page(Shell(port, "smollm2-135m")):
        if line.startswith("echo"):
            starts = [part.split()[0] for part in shown.strip().split("\n")]
            assert [part.split()[0] for part in text.strip().split("\n")] == starts
        elif line.startswith("curl"):
            keys = json.loads(text)["choices"][0]["message"]["content"].split("\n")
            assert keys[0].startswith("LOG:")
        elif shown:
            assert shape(text)[: len(shape(shown))] == shape(shown)


def test_each_format_that_the_page_shows_is_recognized(tmp_path):
    [lines] = [text for kind, text in BLOCKS if kind == "json"]
    found = []
    for number, line in enumerate(lines.splitlines()):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(line)
        found.append(read_data(path).format)
    assert found == ["Alpaca", "prompt and completion", "chat messages", "plain text"]
