"""The files of a framework folder that are sent to nodes, and which folder a name means."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.errors import Faults, OrchError
from orchestrator.inventory.hosts import Host
from orchestrator.plan import framework as framework_module
from orchestrator.plan.folders import FrameworkFolder, frameworks, hidden, open_framework
from orchestrator.plan.payload import payload_bytes, payload_files
from orchestrator.plan.placement import place
from orchestrator.plan.render import render
from orchestrator.plan.spec import RunSpec
from tests.support.judge import LIMIT_S

MINIMAL = """\
title: a user's own
models: {resnet50: {}}
dtypes: {cpu: {fp32: float}}
loaders: [synthetic]
defaults: {batch_size: 1, dtype: fp32, loader: synthetic, steps: 3, warmup_steps: 1, timeout_s: 9, repeats: 1}
files: [{template: launch.sh.j2, path: launch.sh}]
probe: print('{}')
log: {files: [rank-0.out], patterns: ['^(?P<step>[0-9]+) (?P<step_time_s>[0-9.]+)$']}
"""


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_folder_is_a_framework_without_registration(tmp_path: Path) -> None:
    write(tmp_path / "mine", framework__yaml=MINIMAL, launch__sh__j2="echo\n")
    write(tmp_path / "no-framework", readme__txt="x")
    assert set(frameworks((tmp_path,))) == {"mine"} | set(frameworks())
    folder = open_framework("mine", (tmp_path,))
    assert (folder.framework.name, folder.sources) == ("mine", {"launch.sh.j2": "echo\n"})
    assert list(folder.payload) == ["rank_wrapper.py"]


def with_payload(folder: Path, payload: str) -> FrameworkFolder:
    write(
        folder,
        framework__yaml=f"{MINIMAL}payload: {payload}\n",
        launch__sh__j2="exec {{ payload['train.py'] }} {{ rank_wrapper }}\n",
    )
    return open_framework(folder.name, (folder.parent,))


def test_a_payload_is_one_set_of_files_and_of_all_files_below_folders(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    write(mine / "models" / "deep", net__py="n = 1\n")
    write(mine / "models" / "__pycache__", net__pyc="compiled")
    (mine / "models" / "__init__.py").write_text("")
    write(mine, train__py="import models\n")
    folder = with_payload(mine, "[train.py, models/, trainer.py]")
    assert set(folder.payload) == {
        "train.py",
        "models/__init__.py",
        "models/deep/net.py",
        "trainer.py",
        "rank_wrapper.py",
    }
    assert (
        folder.payload["models/deep/net.py"] == b"n = 1\n"
        and b"def " in folder.payload["trainer.py"]
    )
    spec = RunSpec("mine", "resnet50", 1, 1, "cpu", 1, "fp32", "synthetic", 3, 1, 9.0, {})
    host = Host("a", "10.0.0.1", slots=1)
    placement = place(spec, [host], 20000)
    plan = render(
        folder.framework,
        folder.sources,
        spec,
        placement,
        {"a": host},
        run_id="r",
        repeat=1,
        payload=folder.payload_digests,
    )
    where = f"../../../../payload/{folder.payload_digest}"
    assert plan.nodes[0].files[-1].content == f"exec {where}/train.py {where}/rank_wrapper.py\n"
    before = folder.payload_digest, folder.framework.digest
    write(mine / "models" / "__pycache__", net__pyc="compiled again")
    folder = with_payload(mine, "[train.py, models/, trainer.py]")
    assert (folder.payload_digest, folder.framework.digest) == before
    (mine / "models" / "deep" / "net.py").rename(mine / "models" / "net.py")
    assert with_payload(mine, "[train.py, models/, trainer.py]").payload_digest != before[0]


def test_a_shell_computes_the_digest_of_a_set_as_we_do(tmp_path: Path) -> None:
    folder = open_framework("pytorch")
    for name, content in folder.payload.items():
        (tmp_path / name).write_bytes(content)
    script = "LC_ALL=C; export LC_ALL; sha256sum -- * | sha256sum"
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == f"{folder.payload_digest}  -\n"
    assert doctest.testmod(framework_module).failed == 0


def _plant(mine: Path, what: str) -> None:
    models = mine / "models"
    models.mkdir(parents=True, exist_ok=True)
    (models / "net.py").write_text("")
    (mine / "train.py").write_text("")
    {
        "link": lambda: (models / "etc").symlink_to("/etc"),
        "link to a neighbour": lambda: (models / "same.py").symlink_to("net.py"),
        "broken link": lambda: (models / "gone.py").symlink_to("nowhere"),
        "linked file": lambda: (mine / "train.py").unlink() or (mine / "train.py").symlink_to("models/net.py"),
        "linked folder": lambda: (mine / "also").symlink_to("models"),
        "pipe": lambda: os.mkfifo(models / "pipe"),
        "space": lambda: (models / "net copy.py").write_text(""),
        "hidden": lambda: (models / ".git").mkdir(),
        "line": lambda: (models / "a\nb.py").write_text(""),
        "deep": lambda: (models / ("x" * 100) / ("y" * 100)).mkdir(parents=True),
        "many": lambda: [(models / f"f{number}.py").touch() for number in range(256)],
        "large": lambda: os.truncate(models / "net.py", (1 << 24) + 1),
        "": lambda: None,
    }[what]()  # fmt: skip


@pytest.mark.parametrize(
    ("plant", "payload", "words"),
    [
        ("link", "[models/]", "models/etc is a symbolic link"),
        ("link to a neighbour", "[models/]", "models/same.py is a symbolic link"),
        ("broken link", "[models/]", "models/gone.py is a symbolic link"),
        ("linked file", "[train.py]", "train.py is a symbolic link"),
        ("linked folder", "[also/]", "also is a symbolic link"),
        ("linked folder", "[also/net.py]", "also is a symbolic link"),
        ("pipe", "[models/]", "models/pipe is a pipe, socket or device"),
        ("space", "[models/]", "no part starting with a dot or dash, got 'models/net copy.py'"),
        ("hidden", "[models/]", "got 'models/.git'. rename it, or move it elsewhere"),
        ("line", "[models/]", r"'models/a\nb.py'"),
        ("deep", "[models/]", "up to 200 letters"),
        ("many", "[models/]", "expected up to 256 files of 16 MiB together"),
        ("large", "[models/]", "models/net.py exceeds"),
        ("", "[models]", "expected a payload file, {mine}/models is a folder. write models/ to send all files below it"),
        ("", "[train.py/]", "expected a payload folder, {mine}/train.py is a file. remove the slash after the name"),
        ("", "[absent/]", "expected a payload folder, found no absent/. looked in {mine} "),
        ("", "[trian.py]", "did you mean 'train.py'?"),
        ("", "[../mine/train.py]", "expected a file such as train.py, or a folder"),
        ("", "[/etc/passwd]", "relative to the framework's folder, got the text '/etc"),
        ("", "[models//net.py]", "relative to the framework's folder"),
        ("", "['a b.py']", "relative to the framework's folder"),
        ("", "[./]", "relative to the framework's folder"),
        ("", "[rank_wrapper.py]", "orch's rank wrapper has this one"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_with_file_line_and_key(
    tmp_path: Path, plant: str, payload: str, words: str
) -> None:
    mine = tmp_path / "mine"
    _plant(mine, plant)
    with pytest.raises(OrchError) as caught:
        with_payload(mine, payload)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{mine}/framework.yaml:9: payload.0: "), str(caught.value)
    assert words.replace("{mine}", str(mine)) in str(caught.value), str(caught.value)


def test_a_file_of_orch_is_found_by_its_bare_name_and_by_that_of_an_earlier_version(
    tmp_path: Path,
) -> None:
    folder = with_payload(
        tmp_path / "mine", "[trainer.py, rank_progress.py, torch_stamps.py, simulated_meeting.py]"
    )
    now = {
        "torch_stamps.py": "step_timestamps.py",
        "simulated_meeting.py": "simulated_rendezvous.py",
    }
    assert set(folder.payload) == {
        "trainer.py",
        "rank_progress.py",
        "rank_wrapper.py",
        *now,
        *now.values(),
    }
    assert all(folder.payload[name] == payload_bytes(renamed) for name, renamed in now.items())


def test_all_faults_of_a_payload_come_together_and_with_those_of_other_keys(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for plant in ("link", "pipe", "space", "hidden"):
        _plant(mine, plant)
    write(
        mine,
        framework__yaml=f"titel: x\npayload:\n- trian.py\n- models/\n- ../x\n- train.py/\n{MINIMAL}",
        launch__sh__j2="echo\n",
    )
    with pytest.raises(Faults) as caught:
        open_framework("mine", (tmp_path,))
    places = [fault.where.removeprefix(f"{mine}/framework.yaml:") for fault in caught.value.errors]
    assert places == [
        "1: titel",
        "3: payload.0",
        *["4: payload.1"] * 4,
        "5: payload.2",
        "6: payload.3",
    ]


def test_what_cannot_be_sent_of_a_large_folder_is_not_listed_to_its_end(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    _plant(mine, "many")
    for number in range(30):
        (mine / "models" / f"f{number}.py").unlink()
        (mine / "models" / f"f{number}.py").symlink_to("net.py")
    _, faults = payload_files({"models/": "a", "absent.py": "b"}, mine)
    assert [fault.where for fault in faults] == [*["a"] * 21, "b"]
    assert str(faults[20]).startswith(
        "a: expected files that can be sent, but more than 20 in models/ cannot. "
    )


def test_what_follows_files_beyond_the_limits_is_looked_at_too(tmp_path: Path) -> None:
    _plant(tmp_path / "mine", "large")
    _, faults = payload_files({"models/": "a", "absent.py": "b"}, tmp_path / "mine")
    assert [str(fault).split(",")[0] for fault in faults] == [
        "a: expected up to 256 files of 16 MiB together",
        "b: expected a payload file",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize(
    ("closed", "mode"), [("models", 0o700), ("models", 0o744), ("models/net.py", 0o600)]
)
def test_a_payload_that_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, mode: int
) -> None:
    _plant(tmp_path / "mine", "")
    with_payload(tmp_path / "mine", "[models/]")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    (tmp_path / "mine" / closed).chmod(mode)
    monkeypatch.chdir(tmp_path)  # the folders above it are closed to others
    os.seteuid(65534)
    try:
        _, faults = payload_files({"models/": "framework.yaml:9: payload.0"}, Path("mine"))
        assert re.match(
            r"framework.yaml:9: payload\.0: mine/models(/net\.py)? cannot be read: Permission denied",
            str(faults[0]),
        )
    finally:
        os.seteuid(0)


def test_a_folder_of_the_users_own_wins_over_one_of_ours(tmp_path: Path) -> None:
    write(tmp_path / "simulated", framework__yaml=MINIMAL, launch__sh__j2="echo\n")
    assert open_framework("simulated", (tmp_path,)).framework.title == "a user's own"
    ours = frameworks()["simulated"]
    assert hidden((tmp_path,)) == {"simulated": (ours,)} and hidden(()) == {}


def test_the_first_of_several_bases_wins_and_a_base_given_twice_hides_nothing(
    tmp_path: Path,
) -> None:
    for base in ("a", "b"):
        write(
            tmp_path / base / "mine",
            framework__yaml=MINIMAL.replace("a user's own", base),
            launch__sh__j2="echo\n",
        )
    a, b = tmp_path / "a", tmp_path / "b"
    assert [
        open_framework("mine", bases).framework.title for bases in ((a, b), (b, a), (b, b))
    ] == ["a", "b", "b"]
    assert (hidden((a, b)), hidden((b, b / "."))) == ({"mine": (b / "mine",)}, {})
    write(b / "mine", framework__yaml=MINIMAL.replace("a user's own", "a"))
    assert hidden((a, b)) == {}  # the same files


def test_the_digest_of_a_folder_changes_with_every_byte_in_it(tmp_path: Path) -> None:
    write(tmp_path / "mine", framework__yaml=MINIMAL, launch__sh__j2="echo\n")
    before = open_framework("mine", (tmp_path,)).framework.digest
    write(tmp_path / "mine", launch__sh__j2="echo \n")
    assert open_framework("mine", (tmp_path,)).framework.digest != before
