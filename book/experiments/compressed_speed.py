"""How fast is SmolLM2 in other formats and programs, and how much memory does it need?

    python book/experiments/compressed_speed.py            run what is missing of the record
    python book/experiments/compressed_speed.py --confirm  after an edit: run one short row again

The programs: the course's engine, llama.cpp with GGUF files, and ONNX Runtime. Each runs in a
process of its own on one thread or two, for one sequence. It takes turns with the engine in fp32,
so that a slower moment of the machine meets both. Times are medians: of loading over LOADS starts,
with the files in the system's cache; of the first token after a prompt of 64 and of a step over
ROUNDS turns, after one to warm up. Bytes are those of the weights; for llama.cpp and ONNX Runtime,
of the files. Memory is that of the whole process, libraries included.

For ONNX Runtime, each text of the 40 plain sentences has its loss too, since activations are
rounded there, and its number of predicted tokens. The model is as loaded, not rotated.

llama.cpp needs the package xllamacpp in an environment of its own, as
benchmarks/test_llama_cpp.py describes; COURSE_LLAMA_CPP names its Python.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from record import main
from speed_worker import PROMPT, STEPS

from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.acceleration.quantization.layerwise import RoundToNearest, quantize_layers
from course_pkg.deployment.export.gguf_model import write_gguf_model
from course_pkg.deployment.export.onnx_model import export_onnx, quantize_onnx
from course_pkg.deployment.export.onnx_session import OnnxDecoder
from course_pkg.lm.load import load
from course_pkg.pages.datasets import load_texts
from course_pkg.pages.experiments import ROOT
from course_pkg.studies.compression.layer_removal import evenly_spaced, keep_layers
from course_pkg.studies.compression.pruning import Magnitude, SemiStructured, prune_layers

MODEL = "smollm2-135m"
START = "<|endoftext|>"  # what stands between texts in the pre-training of SmolLM2
FORMATS = {
    "engine": ("fp32", "int8", "int4", "2:4", "24 layers"),
    "llama.cpp": ("F32", "F16", "Q8_0", "Q4_0"),
    "onnxruntime": ("fp32", "int8 dynamic", "int8 groups", "int4 groups"),
}
GROUPS = {"int8 groups": Grid(8, 32), "int4 groups": Grid(4, 32)}
LAYERS = 24
LOADS, ROUNDS = 3, 7
PROBE = {"program": "engine", "format": "int8", "threads": 1}
PLAN = [
    {"program": program, "format": form, "threads": threads}
    for threads in (1, 2)
    for program, forms in FORMATS.items()
    for form in forms
]


class Files:
    """The model in each format, written when it is needed. model: its name."""

    def __init__(self, model: str = MODEL) -> None:
        self.model = model
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name)

    def source(self, program: str, form: str) -> str:
        """What a program loads: a file, a folder, or the model's name."""
        if program == "engine" and form in ("fp32", "int8", "int4"):
            return self.model
        folder = self.folder / f"{program} {form}".replace(":", " of ")
        name = {"engine": "", "llama.cpp": "model.gguf", "onnxruntime": "model.onnx"}[program]
        path = folder / (name if form != "int8 dynamic" else "model_int8.onnx")
        if not path.exists():
            folder.mkdir()
            self.write(program, form, folder)
        return str(path)

    def write(self, program: str, form: str, folder: Path) -> None:
        """Write the model in a format into a folder."""
        model, tokenizer = load(self.model)
        if program == "llama.cpp":
            return write_gguf_model(model, tokenizer, folder / "model.gguf", form)
        if form in GROUPS:
            quantize_layers(model, RoundToNearest(GROUPS[form]))
        elif form == "2:4":
            prune_layers(model, Magnitude(SemiStructured(2, 4)))
        elif form == "24 layers":
            model = keep_layers(model, evenly_spaced(model.config.num_hidden_layers, LAYERS))
        if program == "engine":
            model.save_pretrained(folder)
            return tokenizer.save_pretrained(folder)
        export_onnx(model, tokenizer, folder)
        if form == "int8 dynamic":
            quantize_onnx(folder)
        return None

    def losses(self, path: Path) -> list[list]:
        """For each plain sentence, its loss, summed over tokens, in nats, and their number."""
        decoder = OnnxDecoder(path.parent, path.name, threads=1)
        found = []
        for text in load_texts("passages", "test"):
            ids = np.array(decoder.tokenizer.encode(START + text, add_special_tokens=False).ids)
            logits, _ = decoder.forward(ids[None])
            scores = torch.from_numpy(logits[0, :-1].copy())
            loss = torch.nn.functional.cross_entropy(
                scores, torch.from_numpy(ids[1:]), reduction="sum"
            )
            found.append([loss.item(), len(ids) - 1])
        return found


class Worker:
    """A process that runs one program."""

    def __init__(self, program: str, source: str, form: str, threads: int) -> None:
        python = llama_cpp_python() if program == "llama.cpp" else sys.executable
        script = str(ROOT / "book/experiments/speed_worker.py")
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [python, script, program, source, form, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, command: str) -> dict:
        """The answer to a command. Raises RuntimeError if the process has ended."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args)} ended at {command}")
        return json.loads(line)

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def llama_cpp_python() -> str:
    """The Python with xllamacpp. Raises SystemExit if there is none."""
    path = Path(os.environ.get("COURSE_LLAMA_CPP", ROOT / ".venv-llama-cpp/bin/python"))
    if not path.is_file():
        raise SystemExit(f"there is no {path}: benchmarks/test_llama_cpp.py says how to make it")
    return str(path)


def measure(files: Files, key: dict) -> dict:
    """The times of a program and of the engine in fp32, in turns; bytes and memory."""
    program, form, threads = key["program"], key["format"], key["threads"]
    source = files.source(program, form)
    started = {
        "": (program, source, form, threads),
        "_fp32": ("engine", files.source("engine", "fp32"), "fp32", threads),
    }
    times: dict[str, list[float]] = {}
    workers: dict[str, Worker] = {}
    found = {}
    try:
        for _ in range(LOADS):
            for name, what in started.items():
                if name in workers:
                    workers.pop(name).stop()
                workers[name] = Worker(*what)
                loaded = workers[name].ask("load")
                times.setdefault(f"load{name}_seconds", []).append(loaded["load"])
                found.setdefault("bytes", loaded["bytes"])  # of the first, which is the program
        for turn in range(ROUNDS + 1):
            for name, worker in workers.items():
                for what, seconds in worker.ask("generate").items():
                    if turn > 0:
                        times.setdefault(f"{what}{name}_seconds", []).append(seconds)
        found |= workers[""].ask("memory")
    finally:
        for worker in workers.values():
            worker.stop()
    found |= {name: statistics.median(values) for name, values in times.items()}
    if program == "onnxruntime" and threads == 1:
        found["plain"] = files.losses(Path(source))
    return found


if __name__ == "__main__":
    settings = {
        "model": MODEL,
        "prompt": PROMPT,
        "steps": STEPS,
        "rounds": ROUNDS,
        "loads": LOADS,
    }
    data = ("passages/test.jsonl",)
    main(__file__, PLAN, Files, measure, probe=PROBE, settings=settings, data=data)
