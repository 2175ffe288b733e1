"""Bad inputs: each is refused with status 2, without a traceback, before anything is contacted,
naming what is wrong and where.

The commands run in a network namespace without any interface, one process for each case, started by
one program that has loaded the command line already; so a whole table takes seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.rig import outer_environment
from tests.faults.suite import Trial, row
from tests.support import judge
from tests.support.commands import Commands

HOSTS = "schema: 1\ndefaults: {gpus: 8}\nhosts:\n  no1: {address: no1.invalid}\n  no2: {address: no2.invalid}\n"
PLAN = ("bench", "resnet50", "-f", "simulated", "--dry-run")


@dataclass(frozen=True, slots=True)
class Case:
    """One bad input: the files of a project, a command, words of which each must be in the answer."""

    words: Sequence[str]
    said: Sequence[str]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    within_s: float = 10.0


class Inputs:
    """Runs cases, each in a project of its own."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.commands = Commands()
        self.environment = outer_environment(scratch) | {"COLUMNS": "200"}
        self.failures: list[str] = []
        self.count = 0

    def __enter__(self) -> Inputs:
        return self

    def __exit__(self, *_: object) -> None:
        self.commands.close()

    def project(self) -> Path:
        """Make the folder of the next case."""
        self.count += 1
        folder = self.scratch / f"case{self.count}"
        (folder / "inventory").mkdir(parents=True)
        (folder / "inventory" / "cluster.yaml").write_text(HOSTS)
        return folder

    def judge(self, name: str, case: Case, folder: Path | None = None) -> None:
        """Run one case and note what is wrong with the answer."""
        folder = folder or self.project()
        for path, content in case.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(
                content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
            )
        ended, seconds = self.commands.run(case.words, folder, self.environment | case.environment)
        out, err = ended.stdout, ended.stderr
        text = "\n".join(line for line in err.splitlines() if not line.startswith("inventory: "))
        wrong = [f"{words!r} is not said" for words in case.said if words not in text]
        if ended.returncode != 2:
            wrong.append(f"status {ended.returncode}")
        if "Traceback" in text or out:
            wrong.append(f"traceback or output: {out[:200]}")
        if not judge.in_time(seconds, case.within_s):
            wrong.append(f"took {seconds:.1f} s")
        if len(text) > 60_000 or any(
            ord(character) < 32 and character not in "\n\t" for character in text
        ):
            wrong.append("the answer is too long, or has control characters")
        if list(folder.glob("runs/*/*/manifest.json")):
            wrong.append("a run was planned")
        if wrong:
            self.failures.append(f"{name}: {'; '.join(wrong)}: {text[:600]}")

    def done(self) -> None:
        """Fail with all that was wrong."""
        assert not self.failures, f"{len(self.failures)} of {self.count} cases:\n" + "\n".join(
            self.failures
        )


def inventory(
    text: str | bytes, *said: str, name: str = "own.yaml", within_s: float = 10.0
) -> Case:
    """Return the case of an inventory file."""
    return Case((*PLAN, "--hosts", name), said, {name: text}, within_s=within_s)


def host(body: str, *said: str) -> Case:
    """Return the case of an inventory with these lines under ``hosts:``."""
    return inventory(f"schema: 1\nhosts:\n{body}\n", "own.yaml:", "expected", *said)


LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
PARTS = unicodedata.normalize("NFD", "nodé")
INVENTORIES = {
    "missing": Case((*PLAN, "--hosts", "gone.yaml"), ("gone.yaml: expected a file, found none",)),
    "directory": Case((*PLAN, "--hosts", "inventory/"), ("inventory/: expected a file, got a directory with cluster.yaml",)),
    "empty": inventory("", "own.yaml", "an empty file"),
    "only comments": inventory("# nothing\n", "own.yaml", "expected at least one host"),
    "not UTF-8": inventory(b"hosts:\n  \xff\xfe: {}\n", "own.yaml:2", "expected UTF-8 text, got byte 0xff"),
    "tabs": inventory("schema: 1\nhosts:\n\ta: {}\n", "own.yaml:3", "spaces, not with tabs"),
    "duplicate key": inventory("schema: 1\nhosts: {a: {}}\nhosts: {b: {}}\n", "own.yaml:3", "got 'hosts' again"),
    "duplicate alias": host("  a: {}\n  a: {}", "got 'a' again", "own.yaml:4"),
    "alias by case": host("  node1: {address: a}\n  Node1: {address: b}", "got 'Node1' again"),
    "alias by unicode": host(f"  nodé: {{address: a}}\n  {PARTS}: {{address: b}}", "letters, digits"),
    "unknown key": inventory("schema: 1\nhost: {a: {}}\n", "own.yaml:2: host: expected a known key", "did you mean 'hosts'?"),
    "unknown key of a host": host("  a: {gpu: 8}", "hosts.a.gpu: expected a known key", "did you mean 'gpus'?"),
    "port in quotes": host('  a: {ssh: {port: "22"}}', "hosts.a.ssh.port", "the text '22'"),
    "port 0": host("  a: {ssh: {port: 0}}", "from 1 to 65535", "the number 0"),
    "port 65536": host("  a: {ssh: {port: 65536}}", "the number 65536"),
    "port 022": host("  a: {ssh: {port: 022}}", "the text '022'", "leading zeros"),
    "gpus eight": host("  a: {gpus: eight}", "hosts.a.gpus", "the text 'eight'"),
    "gpus -1": host("  a: {gpus: -1}", "the number -1"),
    "gpus 1e9": host("  a: {gpus: 1e9}", "a whole number from 0 to 1024"),
    "host empty": host('  "": {}'),
    "host with space": host('  "a b": {}'),
    "host with newline": host('  "a\\nb": {}'),
    "host with NUL": host('  "a\\0b": {}'),
    "host with dash": host('  "-a": {}'),
    "user@host": host('  "root@a": {}'),
    "host:port": host('  "a:22": {}'),
    "address with user": host("  a: {address: root@b}"),
    "address with port": host('  a: {address: "b:22"}'),
    "IPv6 in half brackets": host('  a: {address: "[::1"}'),
    "IPv6 with a zone": host('  a: {address: "fe80::1%eth0"}', "leave out the zone"),
    "IPv6 with brackets": host('  a: {address: "[::1]"}', "write an IPv6 address without brackets"),
    "300 bytes": host(f'  "{"a" * 300}": {{}}', "at most 128 bytes, got 300 bytes"),
    "10 001 hosts": host('  "n[1-10001]": {}', "at most 10000 hosts"),
    "zero hosts": inventory("schema: 1\nhosts: {}\n", "expected at least one host, got none"),
    "group loop": inventory(
        'schema: 1\nhosts: {a: {}}\ngroups: {x: ["@y"], y: ["@x"]}\n', "own.yaml:3", "loop"
    ),
    "tag": host("  a: !!python/object/apply:os.system [id]", "expected no tags"),
    "nested aliases": inventory(LAUGHS, "own.yaml:6", "values"),
    "3000 brackets": host("  a: " + "[" * 3000 + "]" * 3000, "at most 50 levels"),
    "3000 open brackets": inventory("[" * 3000, "own.yaml:1", "bracket"),
    "1 MiB and more": inventory("#" * (1 << 20) + "\n" + HOSTS, "at most 1 MiB"),
    "schema text": inventory('schema: "1"\nhosts: {a: {}}\n', "own.yaml:1: schema: expected 1"),
    "schema of a newer orch": inventory("schema: 7\nhosts: {a: {}}\n", "a newer orch"),
    "truth for text": host("  a: {env: {X: true}}", "hosts.a.env.X"),
    "several at once": inventory(
        "schema: 1\ndefaults: {gpu: 8}\nhosts:\n  n1: {address: a, gpus: eight}\n  n2: {address: b, ssh: {port: 70000}}\n",
        "own.yaml:2: defaults.gpu", "own.yaml:4: hosts.n1.gpus", "own.yaml:5: hosts.n2.ssh.port",
    ),
    "a secret that is none": inventory(HOSTS + "secrets: [TOKEN]\n", "secrets", "expected the name of a variable"),
    "a variable of the placement": host("  a: {env: {RANK: '0'}}", "the placement of a run sets it"),
    "a jump host with options": host('  a: {ssh: {jump: "-oProxyCommand=x"}}', "a jump host"),
    "a key path with options": host('  a: {ssh: {key: "-oProxyCommand=x"}}', "a path"),
    "a pipe": Case((*PLAN, "--hosts", "pipe.yaml"), ("pipe.yaml", "expected a regular file")),
}  # fmt: skip
NAMES = (
    "..", ".", "a/b", "/etc", ".hidden", "-dash", "a\\x07b", "a\\x1b[2J", "trailing ", " leading", "all", "a" * 129, "a\\tb",
    "~", "a*", "$(id)", "a;b", "..\\\\x", "a\\u202eb", "CON:",
)  # fmt: skip
TEMPLATES = {
    "undefined name": (
        "a\n{{ nothing }}\n",
        ("launch.sh.j2:2", "expected a name that a template sees, got 'nothing'"),
    ),
    "syntax error": ("a\n{% if %}\n", ("launch.sh.j2:2", "expected an expression, got")),
    "unclosed": ("a\nb\n{{ 'x' \n", ("launch.sh.j2:3",)),
    "endless loop": (
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        ("iterations",),
    ),
    "huge output": (
        "{% for a in range(900000) %}0123456789{% endfor %}",
        ("up to 1048576 characters",),
    ),
    "huge product": ("{{ 'x' * 10000000000 }}", ("product of up to",)),
    "huge power": ("{{ 9 ** 100000000 }}", ("power of at most 1024 bits",)),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ("recursion",)),
    "class": ("{{ ''.__class__ }}", ("unsafe",)),
    "globals": ("{{ refuse.__globals__ }}", ("unsafe",)),
    "attr filter": ("{{ ''|attr('__class__') }}", ("unsafe",)),
    "format": ("{{ '{0.__class__}'.format(1) }}", ("unsafe",)),
    "include outside": ("{% include '../secret' %}", ("../secret",)),
    "include absolute": ("{% include '/etc/passwd' %}", ("/etc/passwd",)),
    "import of a module": ("{% import 'os' as os %}", ("os",)),
    "carriage returns": ("a{{ '\\r' }}\n", ("carriage return",)),
    "binary": ("a\0b", ("NUL",)),
    "not UTF-8": (b"a\xff\n", ("UTF-8",)),
    "empty": ("", ("empty",)),
}
FRAMEWORK = """\
title: mine
launch: every_node
batch_size_is: device
models: {resnet50: {title: x, parameters: 1}}
dtypes: {cpu: {fp32: fp32}, cuda: {fp32: fp32}}
loaders: [synthetic]
defaults: {batch_size: 4, dtype: fp32, loader: synthetic, steps: 4, warmup_steps: 1, timeout_s: 60, repeats: 1}
files: [{template: launch.sh.j2, path: launch.sh, target: sh, mode: "0700"}]
probe: print('{}')
log: {files: [rank-0.out], patterns: ['step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+)'], scope: global}
"""
FOLDERS = {
    "no such program": ("probe: print('{}')", "probe: x\npayload: [absent.py]", "absent.py"),
    "path outside": ("path: launch.sh", "path: ../launch.sh", "files.0.path"),
    "absolute path": ("path: launch.sh", "path: /etc/launch.sh", "files.0.path"),
    "mode": ('mode: "0700"', 'mode: "4777"', "files.0.mode"),
    "open pattern": ("(?P<step>[0-9]+)", "(?P<step>[0-9]+", "regular expression"),
    "explosive pattern": ("(?P<step>[0-9]+)", "(a+)+(?P<step>[0-9]+)", "log.patterns"),
    "no template": ("template: launch.sh.j2", "template: other.sh.j2", "other.sh.j2"),
    "unknown key": ("title: mine", "titel: x\ntitle: mine", "titel"),
}
OPTIONS = {
    "unknown framework": (("bench", "resnet50", "-f", "pytorh"), ("did you mean 'pytorch'?", "tensorflow")),
    "framework outside": (("bench", "resnet50", "-f", "../../etc"), ("no framework",)),
    "unknown model": (("bench", "resnet5", "-f", "simulated"), ("no model 'resnet5'", "did you mean 'resnet50'?")),
    "more nodes than hosts": (("--nodes", "9"), ("expected 9 hosts, 2 selected",)),
    "zero nodes": (("--nodes", "0"), ("--nodes: expected a whole number ≥ 1, got 0",)),
    "negative gpus": (("--gpus", "-1"), ("--gpus: expected a whole number ≥ 1, got -1",)),
    "words for numbers": (("--nodes", "two"), ("expected whole numbers",)),
    "zero batch": (("--batch-size", "0"), ("--batch-size: expected a whole number ≥ 1",)),
    "negative batch": (("--batch-size", "-8"), ("--batch-size: expected a whole number ≥ 1",)),
    "steps not above warm-up": (("--steps", "20", "--warmup-steps", "20"), ("more steps than the 20 warm-up steps",)),
    "zero steps": (("--steps", "0"), ("--steps",)),
    "no time": (("--timeout", "0"), ("--timeout: expected a time above 0",)),
    "time nan": (("--timeout", "nan"), ("--timeout",)),
    "time inf": (("--timeout", "inf"), ("--timeout",)),
    "lease": (("--lease", "0"), ("--lease",)),
    "value with quotes": (("--set", "compute_ms=\"'5"), ("compute_ms", "expected")),
    "value with newline": (("--set", "compute_ms=5\n6"), ("compute_ms", "expected")),
    "value nan": (("--set", "compute_ms=nan"), ("compute_ms", "expected")),
    "set without =": (("--set", "compute_ms"), ("--set: expected key=value, got 'compute_ms'",)),
    "set without key": (("--set", "=5"), ("--set: expected key=value, got '=5'",)),
    "set twice": (("--set", "seed=1", "--set", "seed=2"), ("seed is set twice, to '1' and '2'",)),
    "unknown knob": (("--set", "computems=5"), ("no option 'computems'", "did you mean 'compute_ms'?")),
    "shape": (("--shape", "4-8"), ("expected shapes such as",)),
    "unknown dtype": (("--dtype", "fp8"), ("expected one of fp32",)),
    "unknown group": (("--hosts", "@trio"), ("expected a known group",)),
    "nobody left": (("--exclude", "no[1-2]"), ("no host is left",)),
    "host expression": (("--hosts", "no[1-"), ("no[1-",)),
    "giant range": (("--hosts", "n[1-99999999999]"), ("hosts",)),
    "run file": (("--file", "nowhere.yaml"), ("nowhere.yaml: expected a file",)),
    "templates": (("--templates", "nowhere"), ("nowhere: expected a folder",)),
    "unknown option": (("--frobnicate",), ("--frobnicate",)),
}  # fmt: skip


@row("I1", "inventories that are none", trials=1, limit_s=120)
def inventories(trial: Trial) -> None:
    with Inputs(trial.scratch) as inputs:
        for name, case in INVENTORIES.items():
            folder = inputs.project()
            if name == "a pipe":
                os.mkfifo(folder / "pipe.yaml")
            inputs.judge(name, case, folder)
        many = "schema: 1\ndefaults: {gpus: 1}\nhosts:\n" + "".join(
            f"  n{n}: {{address: a{n}}}\n" for n in range(10_000)
        )
        inputs.judge("10 000 hosts, and one node too many", Case((*PLAN, "--nodes", "10001", "--hosts", "own.yaml"),
                     ("expected 10001 hosts, 10000 selected",), {"own.yaml": many}, within_s=20))  # fmt: skip
        for good in ("::1", "2001:db8::2", "10.11.0.2", "node1.example.org"):
            plan = Case((*PLAN, "--nodes", "2", "--hosts", "own.yaml"), ("expected 2 hosts, 1 selected",),
                        {"own.yaml": f'schema: 1\ndefaults: {{gpus: 1}}\nhosts: {{a: {{address: "{good}"}}}}\n'})  # fmt: skip
            inputs.judge(f"good address {good}", plan)
        inputs.done()


@row("I2", "aliases and names of runs as parts of paths", trials=1, limit_s=120)
def names(trial: Trial) -> None:
    with Inputs(trial.scratch) as inputs:
        for name in NAMES:
            inputs.judge(f"alias {name!r}", host(f'  "{name}": {{address: a}}'))
            inputs.judge(
                f"group {name!r}",
                inventory(
                    f'schema: 1\nhosts: {{a: {{}}}}\ngroups: {{"{name}": [a]}}\n', "own.yaml:3"
                ),
            )
        for name in (
            "../../etc",
            "a/b",
            ".hidden",
            "-x",
            "20260101-000000-dead",
            "a\x07b",
            "x" * 5000,
            "",
        ):
            for command in ("summarize", "collect"):
                words = (command, "--", name) if name.startswith("-") else (command, name)
                inputs.judge(f"{command} {name[:40]!r}", Case(words, ("orch: ",)))
        inputs.done()


@row("I3", "templates and framework folders that are none", trials=1, limit_s=120)
def templates(trial: Trial) -> None:
    with Inputs(trial.scratch) as inputs:
        words = ("bench", "resnet50", "-f", "mine", "--templates", "own", "--dry-run")
        for name, (text, said) in TEMPLATES.items():
            files = {
                "own/mine/framework.yaml": FRAMEWORK,
                "own/mine/launch.sh.j2": text,
                "secret": "do not include me",
            }
            inputs.judge(name, Case(words, ("mine/launch.sh.j2", *said), files))
        for name, (old, new, said) in FOLDERS.items():
            assert old in FRAMEWORK
            files = {
                "own/mine/framework.yaml": FRAMEWORK.replace(old, new),
                "own/mine/launch.sh.j2": "echo\n",
            }
            inputs.judge(name, Case(words, ("mine", said), files))
        inputs.done()


@row("I4", "options that cannot be", trials=1, limit_s=120)
def options(trial: Trial) -> None:
    with Inputs(trial.scratch) as inputs:
        for name, (words, said) in OPTIONS.items():
            inputs.judge(name, Case(words if words[0] == "bench" else (*PLAN, *words), said))
        run = (
            "bench",
            "resnet50",
            "-f",
            "simulated",
            "--nodes",
            "1",
            "--gpus",
            "1",
            "--no-baseline",
            "--repeats",
            "1",
        )
        for name in ("a file", "a link to nowhere", "below a file", "not writable"):
            folder, environment, said = inputs.project(), {}, "runs"
            if name == "a file":
                (folder / "runs").write_text("mine")
            elif name == "a link to nowhere":
                (folder / "runs").symlink_to("/nonexistent/runs")
            elif name == "below a file":
                (folder / "file").write_text("mine")
                said = str(folder / "file")
                environment = {
                    "ORCH_PROJECT": said,
                    "ORCH_HOSTS": str(folder / "inventory/cluster.yaml"),
                }
            else:
                said = "/sys/kernel"
                environment = {
                    "ORCH_PROJECT": said,
                    "ORCH_HOSTS": str(folder / "inventory/cluster.yaml"),
                }
            inputs.judge(
                f"run directory {name}", Case(run, ("orch: ", said), {}, environment), folder
            )
        inputs.done()


KEY_FILES = {
    "missing key": "orch: one: key file",
    "key too open": "can be read by others (mode 0644)",
    "key of unknown type": "no usable private key",
    "public half": "no usable private key",
    "key is a directory": "orch: one: key file",
    "known-hosts is a directory": "known-hosts file cannot be read",
    "known-hosts is a loop": "known-hosts file cannot be read",
    "torn line": "known:1: the line about this host is damaged",
    "ssh configuration missing": "config: expected an ssh configuration, found no file",
}


@row("I5", "key files and known-hosts files that cannot be used", trials=1, limit_s=120)
def key_files(trial: Trial) -> None:
    lab = trial.lab
    key = lab.directory / "id_ed25519"
    with Inputs(trial.scratch) as inputs:
        for name, said in KEY_FILES.items():
            folder = inputs.project()
            own, known, config = folder / "key", folder / "known", folder / "config"
            shutil.copy(key, own)
            own.chmod(0o600)
            known.write_text("")
            config.write_text(
                "Host *\n  UserKnownHostsFile /dev/null\n  GlobalKnownHostsFile /dev/null\n"
            )
            if name == "missing key":
                own.unlink()
            elif name == "key too open":
                own.chmod(0o644)
            elif name == "key of unknown type":
                own.write_text(
                    "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
                )
            elif name == "public half":
                own.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJhc2U2NA== me\n")
            elif name == "key is a directory":
                own.unlink()
                own.mkdir(mode=0o700)
            elif name == "known-hosts is a directory":
                known.unlink()
                known.mkdir()
            elif name == "known-hosts is a loop":
                known.unlink()
                known.symlink_to("known")
            elif name == "torn line":
                known.write_text("10.11.0.2 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA\n")
            else:
                config.unlink()
            ssh = {
                "user": "root",
                "key": str(own),
                "known_hosts": str(known),
                "config": str(config),
            }
            value = {
                "schema": 1,
                "defaults": {"gpus": 1, "ssh": ssh},
                "hosts": {"one": {"address": "10.11.0.2"}},
            }
            case = Case(
                ("check", "-f", "simulated", "--hosts", "own.yaml"),
                ("orch: ", said),
                {"own.yaml": json.dumps(value)},
            )
            inputs.judge(name, case, folder)
        inputs.done()
