"""A second `orch deploy`: what stands as it was left is looked at, what does not is brought and
captured again.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.e2e.rig import QUICK, REPOSITORY, Controller
from tests.support import faults


def payload(controller: Controller, node: str) -> dict[str, tuple[bytes, int]]:
    """Content and time of the payload's files on a node, by name."""
    folder = controller.lab.node(node).home / ".orch-node" / "payload"
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_only_what_has_changed_is_deployed_again(controller: Controller) -> None:
    for node in controller.lab.nodes:  # tests before this one leave payloads
        shutil.rmtree(node.home / ".orch-node" / "payload", ignore_errors=True)
    first = controller.orch("deploy", "--framework", "simulated", "--json")
    assert first.code == 0, first
    sent = first.json["sent_bytes"]["simulated"]
    assert set(sent) == {"node1", "node2", "node3", "node4"} and all(
        count > 10_000 for count in sent.values()
    )
    before = {name: payload(controller, name) for name in sent}

    again = controller.orch("deploy", "--framework", "simulated")
    assert (
        again.code == 0
        and "node[1-4]: same boot, driver, interpreter and packages as at " in again.out
    ), again
    assert "simulated: already on node[1-4]" in again.out and re.search(
        r"simulated +node\[1-4\] +ok +python 3", again.out
    ), again
    assert {name: payload(controller, name) for name in sent} == before

    (spoilt,) = (controller.lab.node("node2").home / ".orch-node" / "payload").rglob(
        "train_simulated.py"
    )
    spoilt.chmod(0o600)
    spoilt.write_bytes(spoilt.read_bytes().replace(b"import", b"export", 1))
    faults.kill(controller.lab, "node3")
    faults.boot(controller.lab, "node3")
    third = controller.orch("deploy", "--framework", "simulated")
    assert (
        third.code == 0
        and "node[1,4]: same boot" in third.out
        and "already on node[1,3-4]" in third.out
    ), third
    assert (
        f"simulated: {len(before['node2']['train_simulated.py'][0])} bytes to node2" in third.out
    ), third
    assert {name: content for name, (content, _) in payload(controller, "node2").items()} == {
        name: content for name, (content, _) in before["node2"].items()
    }
    assert "node[1-4]: same boot" in controller.orch("deploy", "--framework", "simulated").out


def test_a_program_with_a_package_travels_as_one_set_and_a_change_of_it_alone(
    controller: Controller,
) -> None:
    mine = controller.project / "templates" / "packaged"
    shutil.copytree(REPOSITORY / "templates" / "simulated", mine)
    description = (mine / "framework.yaml").read_text()
    description, count = re.subn(
        r"payload: \[train_simulated.py",
        "payload: [main.py, words/, train_simulated.py",
        description,
    )
    assert count == 1
    (mine / "framework.yaml").write_text(description)
    script = (mine / "launch.sh.j2").read_text()
    (mine / "launch.sh.j2").write_text(
        script.replace('payload["train_simulated.py"]', 'payload["main.py"]')
    )
    (mine / "words").mkdir()
    (mine / "words" / "__init__.py").write_text("from words.spoken import SPOKEN\n")
    (mine / "words" / "spoken.py").write_text("SPOKEN = 'one'\n")
    main = "import train_simulated, words\nprint('words', words.SPOKEN, flush=True)\ntrain_simulated.main()\n"
    (mine / "main.py").write_text(main)
    words = ("--templates", str(mine.parent), "--framework", "packaged")
    assert controller.orch("deploy", *words).code == 0
    assert "already on node[1-4]" in controller.orch("deploy", *words).out
    (mine / "words" / "spoken.py").write_text("SPOKEN = 'another'\n")
    done = controller.orch("deploy", *words, "--json")
    assert done.json["sent_bytes"]["packaged"] == dict.fromkeys(
        ("node1", "node2", "node3", "node4"), len("SPOKEN = 'another'\n")
    )
    done = controller.orch("bench", "resnet50", *words, *QUICK[3:], "--nodes", "2")
    assert done.code == 0, done
    logs = [path.read_text() for path in (controller.runs[-1] / "logs").rglob("rank-*.out")]
    assert len(logs) == 4 and all("words another\n" in text for text in logs)


def test_another_framework_or_inventory_is_a_deploy_of_its_own(
    controller: Controller, tmp_path: Path
) -> None:
    assert controller.orch("deploy", "--framework", "simulated").code == 0
    other = controller.orch("deploy", "--framework", "pytorch")
    assert "same boot" not in other.out and "pytorch: " in other.out, other
    inventory = controller.project / "moved.yaml"
    text = controller.lab.inventory.read_text()
    inventory.write_text(text.replace("  vars:\n", "  vars:\n    workdir: /tmp/elsewhere\n", 1))
    moved = controller.orch("deploy", "--framework", "pytorch", "--hosts", str(inventory))
    assert "same boot" not in moved.out, moved


def test_a_damaged_memory_costs_one_whole_deploy(controller: Controller) -> None:
    assert controller.orch("deploy", "--framework", "simulated").code == 0
    memory = controller.project / ".orch" / "deployed.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    value = json.loads(memory.read_text())
    for text in (
        "",
        "{",
        "[]",
        '{"hosts": 3}',
        json.dumps({"hosts": {name: 7 for name in value["hosts"]}}),
    ):
        memory.write_text(text)
        done = controller.orch("deploy", "--framework", "simulated")
        assert done.code == 0 and "same boot" not in done.out, (text, done)
