"""The kernel of a lab's machines: found or unpacked, with its modules and an initramfs."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.lab.programs import find, run

ROOT_MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay")
"""What a machine needs to see its files."""
MODULES = (
    *("virtio_net", "virtio_blk", "ext4", "crc32c_generic", "crc32_generic"),
    *("rdma_rxe", "ib_uverbs", "rdma_ucm", "ib_umad", "nfsd", "nfsv4", "nfsv3", "sch_netem"),
)
"""What a machine may load afterwards. Soft RoCE asks for crc32_generic by another name, which
``depmod`` does not know.
"""
_APPLETS = ("sh", "mkdir", "mount", "insmod", "echo", "reboot", "switch_root")
_UNPACK_S = 300.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """Linux for machines, installed on this machine or in a Debian package that was not installed."""

    image: Path
    modules: Path | None = None

    @property
    def version(self) -> str:
        """The version of an installed one, such as 6.1.0-57-amd64; else the name of its package."""
        return self.image.name.removeprefix("vmlinuz-")


def find_kernel(given: Path | None, boot: Path = Path("/boot")) -> Kernel:
    """Return the kernel of a package, or without one the newest that is installed. Raises
    ConfigError if there is none.
    """
    if given is not None:
        if given.suffix != ".deb" or not given.is_file():
            raise ConfigError(f"lab kernel: expected a file linux-image-….deb, got {given}")
        return Kernel(given.absolute())
    installed = [
        Kernel(image, modules)
        for image in boot.glob("vmlinuz-*")
        if (modules := boot.parent / "lib/modules" / image.name[8:])
        .joinpath("modules.dep")
        .exists()
    ]
    if not installed:
        raise ConfigError(
            f"lab kernel: expected {boot}/vmlinuz-… with its folder in /lib/modules, found none",
            hint="apt-get download $(apt-cache depends -i linux-image-amd64 | sed -n 's/.*Depends: //p'), "
            "then orch lab up --machines N --kernel linux-image-….deb",
        )
    return max(installed, key=lambda kernel: [*map(int, re.findall(r"\d+", kernel.version))])


def install(kernel: Kernel, folder: Path) -> str:
    """Write ``vmlinuz``, ``initrd.gz`` and ``modules/VERSION`` into a folder; return the version."""
    unpacked = folder / "package"
    folder.mkdir()
    if kernel.modules is None:
        run([find("dpkg"), "-x", str(kernel.image), str(unpacked)], timeout_s=_UNPACK_S)
        kernel = _unpacked(unpacked, kernel.image)
    assert kernel.modules
    shutil.copy(kernel.image, folder / "vmlinuz")
    modules = folder / "lib/modules" / kernel.version
    order = _copy_modules(kernel.modules, modules)
    run([find("depmod"), "-b", str(folder), kernel.version], timeout_s=_UNPACK_S)
    _write_initramfs(folder / "initrd.gz", folder / "tree", modules, order)
    for rest in (unpacked, folder / "tree"):
        shutil.rmtree(rest, ignore_errors=True)
    return kernel.version


def _unpacked(folder: Path, package: Path) -> Kernel:
    images = [*folder.glob("boot/vmlinuz-*")]
    if not images:
        raise ConfigError(f"lab kernel: expected a kernel in boot/ of {package}, found none")
    version = images[0].name.removeprefix("vmlinuz-")
    run([find("depmod"), "-b", str(folder), version], timeout_s=_UNPACK_S)
    return Kernel(images[0], folder / "lib/modules" / version)


def _copy_modules(source: Path, target: Path) -> list[str]:
    """Copy the modules of machines and those they need; return those of the root file system in the
    order in which they can be loaded.

    A module that is not there is built in, or its work is done by another part of the kernel.
    """
    lines = (source / "modules.dep").read_text(encoding="utf-8").splitlines()
    needs = {path: needed.split() for path, _, needed in (line.partition(":") for line in lines)}
    paths = {Path(path).name.partition(".")[0]: path for path in needs}
    order: list[str] = []
    for name in ROOT_MODULES:
        if name in paths:
            order += [path for path in _with_needed(paths[name], needs) if path not in order]
        elif f"/{name}.ko" not in (source / "modules.builtin").read_text(encoding="utf-8"):
            raise ConfigError(f"lab kernel: {source.name} has no module {name}")
    rest = [path for name in MODULES if name in paths for path in _with_needed(paths[name], needs)]
    for path in {*order, *rest}:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / path, target / path)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    return order


def _with_needed(path: str, needs: dict[str, list[str]]) -> list[str]:
    return [*reversed(needs[path]), path]


def _write_initramfs(archive: Path, tree: Path, modules: Path, order: Sequence[str]) -> None:
    busybox = Path(find("busybox"))
    for folder in ("bin", "lib/modules"):
        (tree / folder).mkdir(parents=True)
    for name in _APPLETS:
        (tree / "bin" / name).symlink_to("busybox")
    shutil.copy(busybox, tree / "bin" / "busybox")
    for library in _libraries(busybox):
        (tree / library.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, tree / library.relative_to("/"))
    names = [Path(path).name.removesuffix(".xz") for path in order]
    for path, name in zip(order, names, strict=True):
        data = (modules / path).read_bytes()
        (tree / "lib/modules" / name).write_bytes(
            lzma.decompress(data) if path.endswith(".xz") else data
        )
    (tree / "order").write_text("".join(f"{name}\n" for name in names), encoding="ascii")
    shutil.copy(Path(__file__).with_name("init.sh"), tree / "init")
    (tree / "init").chmod(0o755)
    packed = subprocess.run(
        [find("sh"), "-c", 'find . | "$0" -o -H newc --quiet', find("cpio")],
        cwd=tree, check=True, capture_output=True,
    ).stdout  # fmt: skip
    archive.write_bytes(gzip.compress(packed, 1))


def _libraries(program: Path) -> list[Path]:
    """Return the libraries of a program; none of a static one."""
    listed = subprocess.run(
        [find("ldd"), str(program)], capture_output=True, text=True, check=False
    )
    return [Path(word) for word in listed.stdout.split() if word.startswith("/")]
