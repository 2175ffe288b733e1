"""Write the image of a node as an archive for containerd: ``image.py NAME OUT.tar``.

It has a shell, the core utilities and Python, as Debian's packages installed them on this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGES = ("bash", "dash", "coreutils", "libpython3-stdlib", "python3-minimal", "libc-bin")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def packages_needed() -> list[str]:
    """Return the packages, with those of the version of Python that is the system's."""
    version = Path("/usr/bin/python3").resolve().name
    own = (f"{version}-minimal", f"lib{version}-minimal", f"lib{version}-stdlib")
    return [*PACKAGES, *own]


def files() -> list[str]:
    """Return the files of the packages, and the libraries that they are linked with."""
    listed = subprocess.run(
        ["dpkg", "-L", *packages_needed()], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = {
        os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path) for path in listed
    }
    found = {
        path for path in found if not path.startswith("/usr/share") and not os.path.isdir(path)
    }
    programs = [path for path in found if os.access(path, os.X_OK) or path.endswith(".so")]
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    libraries = set(re.findall(r"(/\S+) \(0x", linked))
    for path in libraries:
        found |= {os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path)}
        found.add(os.path.realpath(path))
    found.add("/usr/bin/sh")
    return sorted(path for path in found if os.path.lexists(path))


def layer() -> bytes:
    """Return the file system of the image."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("usr", "tmp", "root", "proc", "sys", "dev", "etc", "run", "var"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name, target in LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        passwd = b"root:x:0:0:root:/root:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        archive.addfile(entry, io.BytesIO(passwd))
        for path in files():
            archive.add(path, arcname=path.lstrip("/"), recursive=False)
    return data.getvalue()


def write(name: str, out: Path) -> None:
    """Write the archive: the layer, its configuration, and the manifest that names both."""
    content = layer()
    digest = hashlib.sha256(content).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["sleep", "infinity"], "Env": ["PATH=/usr/sbin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {"layer.tar": content}
    parts |= {
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(out, "w") as archive:
        for part, data in parts.items():
            entry = tarfile.TarInfo(part)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
