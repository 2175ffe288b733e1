"""The commands of a store on a bucket and over ssh, each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contract.rig import Rig
from tests.e2e.rig import ORCH
from tests.support.buckets import make_bucket, service, web_server
from tests.support.commands import inherited_environment
from tests.support.pushers import Person, push_at_once


def person(project: Path, environment: Mapping[str, str]) -> Person:
    project.mkdir()
    plain = inherited_environment() | {
        "HOME": str(project.parent),
        "ORCH_PROJECT": str(project),
        "COLUMNS": "160",
    }

    def start(*words: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [*ORCH, *words], cwd=project, env=plain | dict(environment), text=True, **pipes
        )  # type: ignore[call-overload,no-any-return]

    return Person(project, start)


def test_two_people_push_to_one_bucket_at_once_and_one_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with service() as environment:
        make_bucket(environment, "team")
        people = [person(tmp_path / name, environment) for name in ("ada", "bob", "eve")]
        for one in people:
            one.measure(one.project.name, 1)
        assert push_at_once(people, "s3://team/bench", random.Random(os.getpid()), kill=True) == []


def test_a_store_on_a_machine_is_reached_as_the_inventory_says(rig: Rig, tmp_path: Path) -> None:
    server = rig.serve(known=False)
    ssh = {
        "user": server.user,
        "port": server.port,
        "key": str(rig.keys.client),
        "config": str(rig.config),
    }
    inventory = {
        "schema": 1,
        "defaults": {"ssh": ssh},
        "hosts": {"head": {"address": server.address}},
    }
    (tmp_path / "cluster.yaml").write_text(json.dumps(inventory))
    one = person(tmp_path / "ada", {"ORCH_HOSTS": str(tmp_path / "cluster.yaml")})
    one.measure("ada", 1)
    url = f"head:{server.home}/team"
    code, _, err = one.orch("push", url, "ada1")
    assert code == 3 and "--accept-new" in err, err
    code, out, err = one.orch("push", url, "ada1", "--accept-new")
    assert (code, err) == (0, f"made a store: {url}\n") and out.startswith(
        "ada1: sent and verified; 2 of 2 runs"
    ), err
    assert (server.home / "team/archives.json").is_file()
    assert one.orch("history", "--from", url)[:2] == one.orch("history")[:2]
    code, out, err = one.orch("pull", url, "nothing")
    assert code == 2 and f"{url}: no archive 'nothing'. orch pull {url} lists them" in err
    url = f"ssh://{server.address}{server.home}/team"
    assert one.orch("verify", url)[0] == 0


def test_a_store_on_a_web_server_is_read(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    one = person(tmp_path / "ada", {})
    one.measure("ada", 2)
    assert one.orch("push", str(tmp_path / "team"), "--all")[0] == 0
    with web_server(tmp_path) as url:
        assert one.orch("history", "--from", f"{url}/team") == one.orch("history")
        code, out, err = one.orch("pull", f"{url}/team", "ada1", "--output", "out")
        assert code == 0 and "ada1: verified, in out/ada1" in out, err
        code, _, err = one.orch("push", f"{url}/team", "ada1")
        assert (
            code == 2
            and "got a web server. push to the directory or bucket that the web server serves"
            in err
        )
        (tmp_path / "team/archives.json").unlink()
        for words in (
            ("pull", f"{url}/team"),
            ("history", "--from", f"{url}/team"),
            ("verify", f"{url}/team"),
        ):
            code, out, err = one.orch(*words)
            assert (code, out) == (
                4,
                "",
            ) and "expected archives.json, the list of archives, found none" in err
        code, _, err = one.orch("pull", f"{url}/nothing")
        assert code == 2 and "expected a store, found none" in err
