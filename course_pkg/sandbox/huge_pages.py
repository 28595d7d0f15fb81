"""Huge pages for a fork server: a fork copies one entry for 2 MiB of memory, instead of 512.

A process that has imported torch and transformers has 330 MB of its own memory. Without huge pages,
forking it and ending the child take about three times as long.

Chapter: appendix/threat-model.
"""

import ctypes
from collections.abc import Iterator

MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # from glibc 2.35 on, a heap of huge pages
HUGE_PAGE = 2 << 20  # bytes, on x86-64 and on ARM with pages of 4 KiB
MADV_COLLAPSE = 25  # since Linux 6.1; earlier kernels answer EINVAL

libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def use_huge_pages() -> int:
    """Move this process's private memory to huge pages, as far as the kernel can; the bytes moved.

    Call it once, when everything is loaded: it copies the memory.
    """
    moved = 0
    with open("/proc/self/maps") as file:
        mapped = file.read()
    for start, end in huge_ranges(mapped):
        if libc.madvise(start, end - start, MADV_COLLAPSE) == 0:
            moved += end - start
    return moved


def huge_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Start and end of the whole huge pages in private, writable memory without a file.

    maps: the content of /proc/PID/maps.

    >>> [(hex(a), hex(b)) for a, b in huge_ranges("1ff000-7ff000 rw-p 00000000 00:00 0  [heap]")]
    [('0x200000', '0x600000')]
    """
    for line in maps.splitlines():
        addresses, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if permissions != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        first = -(-start // HUGE_PAGE) * HUGE_PAGE
        last = end // HUGE_PAGE * HUGE_PAGE
        if first < last:
            yield first, last
