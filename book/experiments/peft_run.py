"""One run of the comparison in peft_methods: the methods' settings, a training run, and its costs.

Memory is read from /proc, so this needs Linux.
"""

import copy
import ctypes
import gc
import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from navigator_task import STEPS, Task
from torch import Tensor, nn

from course_pkg.acceleration.quantization.rotation import rotate_residual_stream
from course_pkg.adapters.accounting import measure_step
from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import merge_adapters, trainable_parameters
from course_pkg.adapters.layer import AdapterConfig
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, save
from course_pkg.adapters.prefixes import PrefixTunedModel, PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.adapters.qlora import quantize_model
from course_pkg.adapters.rank_allocator import RankAllocator
from course_pkg.adapters.virtual_tokens import VirtualTokenConfig
from course_pkg.finetuning.batches import batches

FORWARD_TOKENS, FORWARDS = 64, 8  # one text of this length, and how often it is timed
VIRTUAL_TOKENS = 20


@dataclass(frozen=True)
class Method:
    """One method: its adapter, the lowest of the first rates, and where its weights come from.

    config: None for full fine-tuning. bits4: quantize the base to NF4, after a rotation that takes
    it off the 4-bit grid of SmolLM2's file if `rotated`.
    """

    config: AdapterConfig | VirtualTokenConfig | None
    lowest_rate: float
    merges: bool = False
    bits4: bool = False
    rotated: bool = True


METHODS = {
    "full fine-tuning": Method(None, 1e-4),
    "LoRA": Method(LoRAConfig(8), 1e-3, merges=True),
    "QLoRA": Method(LoRAConfig(8), 1e-3, bits4=True),
    "DoRA": Method(DoRAConfig(8), 1e-3, merges=True),
    "AdaLoRA": Method(AdaLoRAConfig(STEPS, 12, 8, tinit=4, tfinal=6), 3e-3, merges=True),
    "IA³": Method(IA3Config(), 1e-2, merges=True),
    "bottleneck": Method(BottleneckConfig(32, target_modules=["o_proj", "down_proj"]), 1e-3),
    "prefix tuning": Method(
        PrefixTuningConfig(VIRTUAL_TOKENS, reparametrize=True, init="zero"), 1e-3
    ),
    "P-tuning v2": Method(PrefixTuningConfig(VIRTUAL_TOKENS, init="zero"), 1e-2),
    "prompt tuning": Method(PromptTuningConfig(VIRTUAL_TOKENS), 1e-2),
}
# Not compared: the base as it is and in NF4, and QLoRA on the file's own weights, whose memory
# doesn't include the second embedding matrix that the rotation needs.
FILE_WEIGHTS = "QLoRA, file's weights"
OTHERS = {
    "base": Method(None, 0),
    "base in NF4": Method(None, 0, bits4=True),
    "base in NF4, file's weights": Method(None, 0, bits4=True, rotated=False),
    FILE_WEIGHTS: Method(LoRAConfig(8), 0, bits4=True, rotated=False),
}


def in_this_process(key: dict) -> dict:
    """Load, adapt, train, and measure; the costs only where the held-out loss is reported."""
    torch.set_num_threads(1)
    task = Task()
    method = (METHODS | OTHERS)[key["method"]]
    ids = batches(task.splits["held-out"], 1, task.pad)[0]["input_ids"][:, :FORWARD_TOKENS]
    costs = key["split"] == "held-out"
    result = {"base_forward_cpu_seconds": forward_seconds(task.model, ids)} if costs else {}
    if method.bits4:
        # Both make a copy: the weights from the file are mapped, and would stay in memory.
        make_copy = rotate_residual_stream if method.rotated else copy.deepcopy
        task.model = make_copy(task.model)
        quantize_model(task.model)
    if key["steps"] == 0:
        task.model.requires_grad_(False)
        result["resident_bytes"] = reset_peak()
        return result | {"nll": task.nll(key["split"])}
    callback = None
    if method.config is None:
        task.model.requires_grad_(True)
    else:
        generator = torch.Generator().manual_seed(key["seed"])
        task.model = adapt(task.model, method.config, generator=generator)
        if isinstance(method.config, AdaLoRAConfig):
            callback = RankAllocator(task.model)
    result["trained"] = sum(p.numel() for p in trainable_parameters(task.model).values())
    resident = reset_peak()
    started = time.process_time()
    history = task.train(key["rate"], key["seed"], key["steps"], callback)
    result["step_cpu_seconds"] = (time.process_time() - started) / key["steps"]
    if costs:
        result |= {"resident_bytes": resident, "peak_bytes": memory("VmHWM")}
    result["last_losses"] = statistics.fmean(step.loss for step in history.steps[-5:])
    result["nll"] = task.nll(key["split"], key.get("answers"))
    return result | (other_costs(task, method, callback, ids) if costs else {})


def other_costs(task: Task, method: Method, callback: RankAllocator | None, ids: Tensor) -> dict:
    """Bytes of a step, counted; then what is kept after training: its file and a forward pass."""
    step = measure_step(task.model.train(), batches(task.examples, 2, task.pad)[0])
    task.model.eval()
    counted = {"weights": step.weights, "saved": step.saved, "gradients": step.gradients}
    if isinstance(task.model, PrefixTunedModel):
        task.model.drop_reparametrization()
    if callback is not None:
        callback.prune()
    with tempfile.TemporaryDirectory() as folder:
        if method.config is None:
            task.model.save_pretrained(folder)
        else:
            save(task.model, folder)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    times = {"forward_cpu_seconds": forward_seconds(task.model, ids)}
    if method.merges:
        merge_adapters(task.model)
        times["merged_forward_cpu_seconds"] = forward_seconds(task.model, ids)
    return {"counted_bytes": counted, "file_bytes": size, **times}


@torch.no_grad()
def forward_seconds(model: nn.Module, ids: Tensor) -> float:
    """The processor's seconds for one forward pass without a cache; the least of several."""
    times = []
    for _ in range(FORWARDS):
        started = time.process_time()
        model(input_ids=ids, use_cache=False)
        times.append(time.process_time() - started)
    return min(times)


def memory(name: str) -> int:
    """Bytes of this process: VmRSS is what it has in memory now, VmHWM the most since the reset."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", status).group(1))


def reset_peak() -> int:
    """Give free memory back to the system and let VmHWM start again; return VmRSS. For Linux."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")
