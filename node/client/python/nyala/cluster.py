"""A cluster in a process of its own, for tests and trials."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import Optional

from ._nyala import Client, connect

_READY = re.compile(r"Connect Kudu clients to the masters? ([^\s]+), for example")


class Cluster:
    """A running cluster. Use it in a ``with`` statement, or call :meth:`stop`."""

    def __init__(self, process: "subprocess.Popen[str]", masters: str, directory: Optional[str]) -> None:
        self._process = process
        self._directory = directory
        #: Addresses of the masters, as :func:`nyala.connect` takes them.
        self.masters = masters

    def connect(self, *, user: Optional[str] = None, timeout: float = 30.0) -> Client:
        """Connects to the cluster."""
        return connect(self.masters, user=user, timeout=timeout)

    def stop(self) -> None:
        """Stops the cluster, and removes its data if it was not given a directory."""
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.stop()


def up(
    *,
    masters: int = 1,
    tablet_servers: int = 1,
    directory: Optional[str] = None,
    program: Optional[str] = None,
) -> Cluster:
    """Starts a cluster on free ports of this machine and waits until it serves.

    ``program`` is the ``nyala`` program; by default that of the variable ``NYALA``, or the first on the path.
    Without ``directory`` the data is removed at the end.
    """
    program = program or os.environ.get("NYALA") or shutil.which("nyala")
    if program is None:
        raise FileNotFoundError("no program nyala on the path; name it by program= or by the variable NYALA")
    own = None
    if directory is None:
        own = directory = tempfile.mkdtemp(prefix="nyala-")
    command = [
        program,
        "up",
        "--free-ports",
        f"--masters={masters}",
        f"--tablet-servers={tablet_servers}",
        f"--dir={directory}",
        "--webserver-enabled=false",
        "--log-level=error",
        f"--default-num-replicas={3 if tablet_servers >= 3 else 1}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        ready = _READY.search(line)
        if ready:
            return Cluster(process, ready.group(1), own)
    code = process.wait()
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
    raise RuntimeError(f"{program} up ended with code {code} before it served; run it by hand to see why")
