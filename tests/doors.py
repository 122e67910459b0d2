"""What a running process shows to others, as the kernel has it: command lines, environments, doors that stand open."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"


def family(pid: int) -> list[int]:
    """A process and all that it and its children have started and that still live."""
    parents: dict[int, int] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def shown_by(pid: int) -> str:
    """Command line and environment of a process; nothing where it has ended."""
    with suppress(OSError):
        return "\0".join((PROC / str(pid) / name).read_text(errors="replace") for name in ("cmdline", "environ"))
    return ""


@dataclass(frozen=True)
class Door:
    """A TCP port that a process listens on."""

    pid: int
    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback


def doors(pids: list[int]) -> list[Door]:
    """All of these processes, by the sockets that they hold."""
    listening = {inode: (address, port) for name in ("tcp", "tcp6") for inode, address, port in _listening(name)}
    return [Door(pid, *listening[inode]) for pid in pids for inode in sorted(_sockets(pid)) if inode in listening]


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for link in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                    found.add(match[1])
    return found


def _listening(name: str) -> Iterator[tuple[str, str, int]]:
    for line in (PROC / "net" / name).read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == LISTENING:
            address, port = local.split(":")
            # Words of the machine's own byte order, and x86 and ARM begin with the last byte.
            words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
            yield inode, str(ipaddress.ip_address(b"".join(words))), int(port, 16)
