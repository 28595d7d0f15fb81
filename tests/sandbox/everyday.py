"""What ordinary notebooks do, run under the system call filter: `python everyday.py NAME`.

Each function asserts its result; then the script prints "done".
"""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path


def processes():
    """Process pools with each start method, and shared memory."""
    from multiprocessing import shared_memory

    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    shared = shared_memory.SharedMemory(create=True, size=16)
    shared.buf[0] = 7
    shared.close()
    shared.unlink()


def programs():
    """Pipes between programs, a new session, a pool of futures."""
    import subprocess
    from concurrent.futures import ProcessPoolExecutor

    shown = subprocess.run("echo hi | tr h H", shell=True, capture_output=True, text=True)
    assert shown.stdout == "Hi\n"
    assert subprocess.run(["true"], start_new_session=True).returncode == 0
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(abs, [-3])) == [3]


def threads_and_sockets():
    """Threads, asyncio with a server on loopback, names, network interfaces, psutil."""
    import asyncio
    import socket
    import threading

    import psutil

    seen = []
    threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8

    async def talk():
        async def greet(_, writer):
            writer.write(b"hi")
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())
        return await reader.read()

    assert asyncio.run(talk()) == b"hi"
    assert socket.getaddrinfo("127.0.0.1", 80)
    assert socket.if_nameindex() and psutil.net_if_addrs()
    assert psutil.Process().memory_full_info().uss > 0


def callbacks():
    """A Python function called from C, for which libffi generates code at run time."""
    import ctypes

    pointer = ctypes.POINTER(ctypes.c_int)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)(lambda a, b: a[0] - b[0])
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    ctypes.CDLL(None).qsort(numbers, 3, 4, compare)
    assert list(numbers) == [1, 2, 3]


def torch_workers():
    """DataLoader workers, tensors shared with a child, a process group of one."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    for strategy in ("file_descriptor", "file_system"):
        torch.multiprocessing.set_sharing_strategy(strategy)
        loader = DataLoader(torch.arange(100), batch_size=10, num_workers=2)
        assert sum(int(batch.sum()) for batch in loader) == 4950
    shared = torch.ones(1000).share_memory_()
    child = torch.multiprocessing.get_context("fork").Process(target=shared.zero_)
    child.start()
    child.join()
    assert float(shared.sum()) == 0.0
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
        dist.all_reduce(ones := torch.ones(3))
        dist.destroy_process_group()
    assert ones.tolist() == [1, 1, 1]


def models():
    """A model saved, loaded and used; rayon's threads in tokenizers; NF4; a plot."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import torch
    from tokenizers import Tokenizer, trainers
    from tokenizers import models as kinds
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer(kinds.BPE())
    tokenizer.train_from_iterator(["the cat sat"] * 500, trainers.BpeTrainer(vocab_size=40))
    assert len(tokenizer.encode_batch(["the cat"] * 500)) == 500
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).save_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(folder)
        prompt = torch.ones(1, 3, dtype=torch.long)
        assert model.generate(prompt, min_new_tokens=2, max_new_tokens=2).numel() == 5
        import matplotlib

        matplotlib.use("agg")
        import matplotlib.pyplot as plt

        plt.plot([1, 2])
        plt.savefig(Path(folder) / "plot.png")
        assert (Path(folder) / "plot.png").stat().st_size > 1000
    import bitsandbytes

    packed, state = bitsandbytes.functional.quantize_4bit(torch.randn(64, 64), quant_type="nf4")
    assert bitsandbytes.functional.dequantize_4bit(packed, state).shape == (64, 64)


def kernel():
    """Another notebook kernel, over TCP on loopback."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        assert client.execute_interactive("1 + 1", timeout=30)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    from course_pkg.sandbox.seccomp import install

    install()
    globals()[sys.argv[1]]()
    print("done")
