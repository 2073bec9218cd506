"""How much a session may take from its host."""

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds of one session. What the host cannot enforce is told by `describe()`."""

    # All processes of the session together; needs a memory cgroup.
    memory_bytes: int = 2048 * _MIB
    # One process. Larger than memory, since runtimes reserve far more than they touch.
    address_space_bytes: int = 8192 * _MIB
    processes: int = 256
    cpu_seconds: int = 600
    file_bytes: int = 1024 * _MIB
    open_files: int = 1024
    # Everything in the session's folder.
    disk_bytes: int = 2048 * _MIB
    shared_memory_bytes: int = 64 * _MIB
