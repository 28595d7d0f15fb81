"""A machine with GPUs that are none: device files, /sys, and a program called nvidia-smi."""

from functools import partial
from pathlib import Path

from course_pkg.sandbox import gpus

SMI = """#!/bin/sh
cd {folder}
[ ! -e fails ] || {{ cat fails; exit 9; }}
case "$*" in
  "-q -x") cat gpus.xml ;;
  *--query-gpu=memory.used*) for a; do case $a in --id=*) cat "used-${{a#--id=}}";; esac; done ;;
esac
"""
ENTRY = """<gpu id="{bus}">
 <product_name>Fake {number}</product_name>
 <mig_mode><current_mig>{mig}</current_mig></mig_mode>
 <uuid>{uuid}</uuid> <minor_number>{minor}</minor_number>
 <fb_memory_usage><total>{total}</total><used>4 MiB</used></fb_memory_usage>
 <compute_mode>{compute}</compute_mode>
</gpu>"""
USUAL = {"mig": "N/A", "total": "8192 MiB", "compute": "Default"}


class FakeGpus:
    """Its device files are /dev/null under other names. fields: of the first GPU's entry."""

    def __init__(self, folder: Path, *minors: int, **fields: str) -> None:
        self.folder = folder
        self.dev = folder / "dev"
        self.sys = folder / "sys"
        for path in (self.dev, self.sys / "devices/system/cpu", self.sys / "module/nvidia"):
            path.mkdir(parents=True)
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in minors)):
            (self.dev / name).symlink_to("/dev/null")
        entries = []
        for number, minor in enumerate(minors):
            uuid = f"GPU-fake-{number}"
            bus = f"00000000:{0x19 + number:X}:00.0"
            device = self.sys / "devices" / f"pci-{number}"
            device.mkdir()
            link = self.sys / "bus/pci/devices" / f"0000:{0x19 + number:x}:00.0"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(device)
            values = {**USUAL, "uuid": uuid, "minor": minor, "number": number, "bus": bus}
            entries.append(ENTRY.format(**(values | (fields if number == 0 else {}))))
            self.use(number, "100")
        (folder / "gpus.xml").write_text(f"<nvidia_smi_log>{''.join(entries)}</nvidia_smi_log>")
        smi = folder / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(SMI.format(folder=folder))
        smi.chmod(0o755)

    def use(self, number: int, mebibytes: str) -> None:
        """What nvidia-smi says about the memory in use on one GPU."""
        (self.folder / f"used-GPU-fake-{number}").write_text(f"{mebibytes}\n")

    def install(self, monkeypatch) -> None:
        """Make this nvidia-smi the only one."""
        monkeypatch.setattr(gpus, "PROGRAMS", ())
        monkeypatch.setenv("PATH", f"{self.folder / 'bin'}:/usr/bin:/bin")

    @property
    def find(self) -> partial:
        return partial(gpus.find_gpus, dev=self.dev, sys=self.sys)
