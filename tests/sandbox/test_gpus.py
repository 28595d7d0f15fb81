"""Which GPUs are found, which device files enter a sandbox, and that nothing else starts CUDA."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from course_pkg.grading.classroom.execution.run_gpus import (
    TRIAL,
    fork_server_environment,
    gpu_environment,
    gpu_view,
)
from course_pkg.grading.classroom.execution.sandbox_views import MODELS, NOTEBOOKS
from course_pkg.sandbox import gpus, policy
from course_pkg.sandbox.fork_server import ForkServer
from course_pkg.sandbox.gpus import MIB, find_gpus, library_path, used_bytes
from course_pkg.sandbox.namespaces import SandboxFailed
from course_pkg.sandbox.policy import View
from tests.sandbox.conftest import LIMITS, ROOT, TARGET, needs_sandbox, run_inside
from tests.sandbox.fake_gpus import FakeGpus


@pytest.fixture
def machine(tmp_path, monkeypatch):
    def with_gpus(*minors, **fields):
        made = FakeGpus(tmp_path, *minors, **fields)
        made.install(monkeypatch)
        return made

    return with_gpus


def test_a_gpu_has_its_own_device_file_whatever_its_index_is(machine):
    made = machine(1, 0)
    usable, reasons = made.find()
    assert reasons == ()
    assert [str(gpu) for gpu in usable] == ["GPU 0 (Fake 0)", "GPU 1 (Fake 1)"]
    assert [gpu.uuid for gpu in usable] == ["GPU-fake-0", "GPU-fake-1"]
    assert usable[0].total_bytes == 8192 * MIB
    for gpu, own in zip(usable, ("nvidia1", "nvidia0"), strict=True):
        shown = {f"/dev/{name}": made.dev / name for name in (own, "nvidiactl", "nvidia-uvm")}
        assert dict(gpu.devices) == shown


def test_the_driver_sees_processors_modules_and_its_own_gpu_only(machine):
    made = machine(0, 1)
    (made.dev / "nvidia-uvm-tools").symlink_to("/dev/null")
    second = made.find()[0][1]
    names = {path.relative_to(made.sys).as_posix() for path in second.readable}
    assert names == {"devices/system", "module/nvidia", "bus/pci/devices", "devices/pci-1"}
    assert "/dev/nvidia-uvm-tools" in dict(second.devices)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"uuid": "N/A"}, "nvidia-smi gives no UUID for it"),
        ({"minor": "N/A"}, "no device file of its own (as under WSL"),
        ({"mig": "Enabled"}, "split by MIG, and the grader uses whole GPUs: `nvidia-smi -mig 0`"),
        ({"compute": "Prohibited"}, "forbids programs: `nvidia-smi -c DEFAULT`"),
        ({"minor": "7"}, "nvidia7 is missing: run `nvidia-modprobe -u -c 7`"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_named_with_the_reason(machine, fields, says):
    usable, (reason,) = machine(0, 1, **fields).find()
    assert [gpu.name for gpu in usable] == ["Fake 1"]
    assert reason.startswith("GPU 0 (Fake 0): ") and says in reason


def test_a_device_file_that_is_closed_to_others_is_named_with_its_mode(machine):
    made = machine(0)
    (made.dev / "nvidiactl").unlink()
    (made.dev / "nvidiactl").touch(mode=0o660)
    usable, (reason,) = made.find()
    assert usable == () and "nvidiactl is closed to other users (mode 06" in reason


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("gpus.xml", "<nvidia_smi_log/>", "nvidia-smi lists no GPU"),
        ("gpus.xml", "<gpu", "nvidia-smi wrote no XML that can be read"),
        ("fails", "a\nFailed to initialize NVML", "nvidia-smi failed: Failed to initialize NVML"),
    ],
)
def test_a_machine_whose_driver_does_not_answer_has_no_gpu(machine, file, text, says):
    made = machine(0)
    (made.folder / file).write_text(text)
    usable, (reason,) = made.find()
    assert usable == () and reason.startswith(says)


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch):
    monkeypatch.setattr(gpus, "PROGRAMS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_gpus() == ((), ("this machine has no NVIDIA driver (there is no nvidia-smi)",))


def test_memory_in_use_is_unknown_if_nvidia_smi_does_not_say(machine):
    made = machine(0)
    (gpu,), _ = made.find()
    assert used_bytes(gpu) == 100 * MIB
    made.use(0, "[N/A]")
    assert used_bytes(gpu) is None
    (made.folder / "fails").write_text("no")
    assert used_bytes(gpu) is None


def test_the_folder_of_the_drivers_library_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "LIBRARIES", (str(tmp_path),))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere:")
    assert library_path() == ""
    (tmp_path / "libcuda.so.1").touch()
    assert library_path() == str(tmp_path)
    assert fork_server_environment([1])["LD_LIBRARY_PATH"] == str(tmp_path)
    assert "LD_LIBRARY_PATH" not in fork_server_environment(None)


LOOK = """
import os, stat
names = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
writable = [os.open(f"/dev/{name}", os.O_RDWR) > 2 for name in names]
kinds = [stat.S_ISCHR(os.stat(f"/dev/{name}").st_mode) for name in names]
def can_add(folder):
    try:
        os.close(os.open(f"{folder}/new", os.O_CREAT | os.O_WRONLY))
        return True
    except OSError:
        return False
result = [names, all(writable + kinds), can_add("/dev"), can_add(FOLDER)]
"""


@needs_sandbox
def test_only_the_files_of_its_gpu_enter_a_sandbox(machine, inside):
    made = machine(0, 1)
    plain = View(policy.python_folders(), writable={"/tmp": 8 * MIB})
    names = ["nvidia-uvm", "nvidia1", "nvidiactl"]
    look = f"FOLDER = {str(made.sys / 'module/nvidia')!r}\n{LOOK}"
    assert inside(look, gpu_view(plain, made.find()[0][1])) == [names, True, False, False]
    assert inside(look, gpu_view(plain, None))[0] == []


CUDA_STARTED = """
import sys, types
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=bool))
sys.modules["torch"].cuda.is_initialized = lambda: {started}
"""


@pytest.mark.parametrize("started", [False, True])
def test_a_fork_server_with_a_cuda_context_does_not_start(tmp_path, started):
    (tmp_path / "starts_cuda.py").write_text(CUDA_STARTED.format(started=started))
    env = policy.environment({"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    with ForkServer(TARGET, ("starts_cuda",), env) as server:
        if not started:
            return server.ready()
        with pytest.raises(SandboxFailed, match="starts CUDA, which breaks CUDA in every child"):
            server.ready()


IMPORTS = """
import importlib, sys, torch
calls = []
asked = ["getDeviceCount", "init", "setDevice", "getDevice", "getCurrentRawStream"]
for name in (f"_cuda_{name}" for name in asked):
    setattr(torch._C, name, lambda *_, name=name: calls.append(name) or 1)
for name in sys.argv[1:]:
    importlib.import_module(name)
from course_pkg.sandbox.fork_process import require_no_cuda
require_no_cuda()
assert torch.cuda.is_available() is False  # what an import may ask, without starting the driver
print(calls, torch.cuda.is_initialized())
"""


@pytest.mark.slow
def test_importing_what_the_fork_server_imports_never_asks_cuda_for_anything():
    """With a torch that looks like a CUDA build, and records every call."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **fork_server_environment(None)}
    line = [sys.executable, "-c", IMPORTS, *MODELS, *NOTEBOOKS]
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    assert done.stdout == "[] False\n", done.stderr[-2000:]


@pytest.mark.gpu
def test_a_real_gpu_is_found_and_computes_in_a_sandbox():
    """Needs a GPU: a kernel forked from a process that imported torch computes on it, confined."""
    usable, reasons = find_gpus()
    assert usable, reasons
    gpu = usable[0]
    before = used_bytes(usable[0])
    env = policy.environment({"PYTHONPATH": str(ROOT), **fork_server_environment([gpu])})
    view = View(policy.python_folders(), writable={"/tmp": 64 * MIB, "/home/student": 64 * MIB})
    limits = replace(LIMITS, memory_bytes=8_000 * MIB, processes=256, files=1024)
    code = f"import os\nos.environ.update({gpu_environment(gpu, None)!r})\n{TRIAL}"
    code += "result = [torch.cuda.device_count(), torch.cuda.get_device_name()]"
    with ForkServer(TARGET, ("torch",), env) as server:
        server.ready()
        assert run_inside(server, code, gpu_view(view, gpu), limits) == [1, gpu.name]
    assert used_bytes(gpu) - before < 1024 * MIB
