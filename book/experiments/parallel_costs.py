"""What parallelism costs on this machine: time against ranks, bubbles, and bytes on the wire.

    python book/experiments/parallel_costs.py            run what is missing of the record
    python book/experiments/parallel_costs.py --confirm  after an edit: run one short row again

"speed": a training step of a small random decoder, the same batch for any number of ranks, one
thread for each. Before and after, one process alone takes its own steps, so that a slower moment
of the machine meets both. The first steps are left out.

"bubble": schedules on four ranks whose stages sleep for fixed times, so that the number of cores
doesn't matter; five runs of each.

"wire": what the kernel counts on the loopback interface during all-reduces, of all ranks together,
headers included. Other programs' messages to this machine would be counted too.
"""

import time
from pathlib import Path

import torch
import torch.nn.functional as F
from record import main
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.data_parallel import DataParallel
from course_pkg.acceleration.parallel.launch import launch
from course_pkg.acceleration.parallel.parallel_decoder import finish_gradients, tensor_parallel
from course_pkg.acceleration.parallel.pipeline_parallel import Pipeline, split_batch
from course_pkg.acceleration.parallel.pipeline_stage import split_decoder
from course_pkg.acceleration.parallel.schedules import gpipe, interleaved, one_f_one_b, zero_bubble
from course_pkg.acceleration.parallel.timeline import bubble_fraction, simulate
from course_pkg.acceleration.parallel.trace import measure as measure_timeline
from course_pkg.acceleration.parallel.vocab_parallel import vocab_parallel_cross_entropy
from course_pkg.acceleration.parallel.zero import ZeroAdamW
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.decoder_config import DecoderConfig

MODEL = {
    "model_type": "llama",
    "vocab_size": 3072,
    "hidden_size": 192,
    "intermediate_size": 516,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
ROWS, TOKENS, MICROBATCHES = 12, 36, 6
WARM_UP, STEPS, RUNS = 2, 8, 5
METHODS = ("data", "zero-1", "zero-2", "zero-3", "tensor", "tensor-sequence", "pipeline")
SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero-bubble": zero_bubble}
SECONDS = {"F": 0.1, "B": 0.2, "I": 0.1, "W": 0.1}  # of a rank's whole part of the model
STAGES, CHUNKS = 4, 2
NUMBERS = 2**20  # of an all-reduce, in fp32
PROBE = {"kind": "speed", "method": "data", "ranks": 2}
PLAN = [
    *({"kind": "speed", "method": m, "ranks": n} for m in METHODS for n in (1, 2, 3, 4)),
    *(
        {"kind": "bubble", "schedule": name, "microbatches": m}
        for name in (*SCHEDULES, "interleaved")
        for m in (4, 8, 16)
    ),
    *({"kind": "wire", "library": lib, "ranks": n} for lib in ("ring", "torch") for n in (2, 3, 4)),
]


def measure(_: None, key: dict) -> dict:
    """The results of one row."""
    return {"speed": speed, "bubble": bubble, "wire": wire}[key["kind"]](key)


def speed(key: dict) -> dict:
    """Seconds of each step after the warm-up, with these ranks and alone; the last loss."""
    torch.set_num_threads(key["ranks"])  # launch gives each rank its share: one thread
    before = launch(train, 1, None, timeout=300)[0]
    together = launch(train, key["ranks"], key["method"], timeout=300)[0]
    after = launch(train, 1, None, timeout=300)[0]
    return {
        "step_seconds": together["seconds"],
        "alone_seconds": before["seconds"] + after["seconds"],
        "loss": together["loss"],
        "parameters": sum(p.numel() for p in decoder().parameters()),
        "tokens": ROWS * TOKENS,
    }


def decoder() -> Decoder:
    """The same random decoder on each rank."""
    torch.manual_seed(0)
    made = Decoder(DecoderConfig.from_dict(MODEL))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.05)
    return made


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Over all tokens."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")


def train(group: Group, method: str | None) -> dict:
    """This rank's seconds for each step, and the loss of the last one."""
    torch.set_num_threads(1)
    group = Group(algorithm="torch")
    step = {
        None: alone_step,
        "data": data_step,
        "tensor": tensor_step,
        "tensor-sequence": tensor_step,
        "pipeline": pipeline_step,
    }.get(method, zero_step)(group, method)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(MODEL["vocab_size"], (ROWS, TOKENS + 1), generator=generator)
    seconds = []
    for _ in range(WARM_UP + STEPS):
        started = time.perf_counter()
        loss = step(ids[:, :-1], ids[:, 1:].contiguous())
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds[WARM_UP:], "loss": loss}


def alone_step(group: Group, method: None):
    """One process without any communication."""
    model = decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: Tensor, labels: Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_sum(model(ids), labels) / labels.numel()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def data_step(group: Group, method: str):
    """Each rank has a part of the rows."""
    model = decoder()
    parallel = DataParallel(model, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: Tensor, labels: Tensor) -> float:
        optimizer.zero_grad()
        mine = (each.tensor_split(group.size)[group.rank] for each in (ids, labels))
        loss = rows_loss(model, *mine, labels.numel())
        loss.backward()
        parallel.synchronize()
        optimizer.step()
        return group.all_reduce(loss.detach()[None]).item()

    return step


def zero_step(group: Group, method: str):
    """Each rank has a part of the rows, and shards."""
    model = decoder()
    zero = ZeroAdamW(model, group, stage=int(method[-1]), lr=1e-3)

    def step(ids: Tensor, labels: Tensor) -> float:
        zero.zero_grad()
        mine = (each.tensor_split(group.size)[group.rank] for each in (ids, labels))
        loss = rows_loss(model, *mine, labels.numel())
        loss.backward()
        zero.synchronize()
        zero.step()
        return group.all_reduce(loss.detach()[None]).item()

    return step


def rows_loss(model: nn.Module, ids: Tensor, labels: Tensor, targets: int) -> Tensor:
    """This rank's part of the mean over all targets."""
    return loss_sum(model(ids), labels) / targets


def tensor_step(group: Group, method: str):
    """Each rank has a part of every layer, and all rows."""
    model = tensor_parallel(decoder(), group, sequence_parallel=method == "tensor-sequence")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: Tensor, labels: Tensor) -> float:
        optimizer.zero_grad()
        logits = model(ids, gather=False)
        loss = vocab_parallel_cross_entropy(logits, labels, group, MODEL["vocab_size"])
        loss.backward()
        finish_gradients(model)
        optimizer.step()
        return loss.item()

    return step


def pipeline_step(group: Group, method: str):
    """Each rank has some layers; 1F1B."""
    module = split_decoder(decoder(), group.size)[group.rank]
    pipeline = Pipeline([module], one_f_one_b(group.size, MICROBATCHES), group, loss_sum)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def step(ids: Tensor, labels: Tensor) -> float:
        optimizer.zero_grad()
        found = pipeline.run(split_batch(ids, labels, MICROBATCHES), labels.numel())
        pipeline.sum_tied_gradients()
        optimizer.step()
        return found.loss

    return step


def bubble(key: dict) -> dict:
    """The idle share of each run, what the formula and the simulation say, and the first run."""
    m = key["microbatches"]
    chunks = CHUNKS if key["schedule"] == "interleaved" else 1
    if chunks > 1:
        schedule = interleaved(STAGES, m, chunks)
    else:
        schedule = SCHEDULES[key["schedule"]](STAGES, m)
    seconds = {kind: each / chunks for kind, each in SECONDS.items()}
    runs = [measure_timeline(schedule, seconds, timeout=120) for _ in range(RUNS)]
    begin = min(event.start for event in runs[0].events)
    return {
        "ranks": STAGES,
        "chunks": chunks,
        "bubbles": [run.bubble for run in runs],
        "predicted": simulate(schedule, seconds).bubble,
        "formula": bubble_fraction(STAGES, m, chunks),
        "events": [
            [rank, *action, round(start - begin, 5), round(end - begin, 5)]
            for rank, action, start, end in runs[0].events
        ],
    }


def wire(key: dict) -> dict:
    """The kernel's count of each all-reduce, and what all ranks together should send."""
    size = NUMBERS * 4
    counts = launch(counted, key["ranks"], key["library"], RUNS, timeout=120)[0]
    return {"tensor_bytes": size, "wire_bytes": counts, "predicted": 2 * (key["ranks"] - 1) * size}


def counted(group: Group, library: str, runs: int) -> list[int]:
    """Bytes on the loopback interface during each of several all-reduces."""
    group = Group(algorithm=library)
    numbers = torch.ones(NUMBERS)
    group.all_reduce(numbers)  # opens the connections
    found = []
    for _ in range(runs):
        group.all_reduce(torch.ones(1))
        before = loopback_bytes()
        group.all_reduce(numbers)
        group.all_reduce(torch.ones(1))
        found.append(loopback_bytes() - before)
    return found


def loopback_bytes() -> int:
    """What Linux has sent on the loopback interface since it started."""
    for line in Path("/proc/net/dev").read_text("ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise RuntimeError("there is no loopback interface in /proc/net/dev")


if __name__ == "__main__":
    settings = {
        "model": MODEL,
        "rows": ROWS,
        "tokens": TOKENS,
        "microbatches": MICROBATCHES,
        "warm_up": WARM_UP,
        "steps": STEPS,
        "runs": RUNS,
        "seconds": SECONDS,
        "threads": 1,
    }
    main(__file__, PLAN, lambda: None, measure, probe=PROBE, settings=settings)
