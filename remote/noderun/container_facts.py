"""The facts of the container in which runs start: from inside, as a run would find it, and from its
engine.
"""

import contextlib
import json
import os

from noderun.files import digest_of, why
from noderun.installed import in_environment

BOOT = "import sys;exec(sys.stdin.buffer.read(int(sys.argv[1])))"
ENGINE_S = 20


def container_facts(root, request):
    """Return the facts of a node that a container changes, and the container's own under
    ``container``.

    ``containers_left`` are [name, state] of the containers that earlier runs have left on this
    node.
    """
    known = request["container"]
    about = {name: known[name] for name in ("engine", "image", "standing", "what") if known[name]}
    mark = os.path.join(root, ".inside-" + request["capture"])
    inside = look_inside(mark, request, known)
    about.update(
        {name: inside[name] for name in ("error", "python", "devices", "nccl") if name in inside}
    )
    about.update(seen_outside(mark))
    about.update(image_facts(known))
    facts = {
        "container": about,
        "framework": inside.get("framework", {"error": "not asked: the container does not start"}),
    }
    facts.update({name: inside[name] for name in ("limits", "shm_bytes") if name in inside})
    if known["object"]:
        text = engine_says(
            known, ["ps", "--all", "--filter=label=orch.run", "--format={{.Names}} {{.State}}"]
        )
        facts["containers_left"] = [
            line.split(None, 1) for line in (text or "").splitlines() if " " in line
        ]
    return facts


def seen_outside(mark):
    """Return whether a file that was made inside is in the work directory, and whether it belongs
    to this user; remove it.
    """
    try:
        owner = os.stat(mark).st_uid
        os.unlink(mark)
    except OSError:
        return {"workdir": False}
    return {"workdir": True, "owner": owner, "same_user": owner == os.getuid()}


def look_inside(mark, request, known):
    """Return the findings of the program in ``request`` inside, or {"error": …} with its failure."""
    program = known["look"].encode()
    names = ("python", "probe", "probe_timeout_s", "environment")
    question = json.dumps(dict({name: request[name] for name in names}, mark=mark)).encode() + b"\n"
    argv = known["python"] + ["-I", "-S", "-u", "-c", BOOT, str(len(program))]
    limit_s = request["probe_timeout_s"]
    try:
        _, out, err = in_environment(
            known["script"], argv, limit_s, program + question, os.path.dirname(mark)
        )
        return json.loads(out.strip().splitlines()[-1])
    except TimeoutError:
        if known["object"] and not known["standing"]:
            engine_says(known, ["rm", "--force", known["name"]])
        return {"error": "%s did not answer within %g s" % (known["what"], limit_s)}
    except OSError as error:
        return {"error": "/bin/bash: %s" % error.strerror}
    except (ValueError, IndexError):
        lines = [line for line in err.strip().splitlines() if line.strip()]
        # What podman logs beside its error may have nothing to do with that.
        lines = [line for line in lines if not line.startswith('time="')] or lines
        return {"error": " / ".join(lines[-2:])[:400] or "it printed nothing"}


def image_facts(known):
    """Return the version of the engine, and the image's digest: the id for docker and podman, else
    the file's digest.
    """
    facts = {}
    if known["program"]:
        facts["version"] = (engine_says(known, ["--version"]) or "").strip()[:100] or None
    if known["standing"]:
        words = (
            engine_says(
                known,
                [
                    "inspect",
                    "--type=container",
                    "--format={{.Image}} {{.Config.Image}}",
                    known["standing"],
                ],
            )
            or ""
        ).split()
        facts.update(zip(("digest", "image"), words))
    elif known["object"]:
        facts["digest"] = (
            engine_says(known, ["image", "inspect", "--format={{.Id}}", known["image"]]) or ""
        ).strip() or None
    elif os.path.isfile(os.path.expanduser(known["image"])):
        path = os.path.expanduser(known["image"])
        try:
            facts["digest"] = "sha256:" + digest_of(path)
        except OSError as error:
            facts["error"] = why(error, path)
    if facts.get("digest"):
        facts["digest"] = "sha256:" + facts["digest"].rpartition(":")[2]
    return facts


def engine_says(known, words):
    """Return the standard output of the engine; None if it fails or does not answer."""
    with contextlib.suppress(OSError, TimeoutError):
        code, out, _ = in_environment(known["setup"], known["program"] + words, ENGINE_S)
        return None if code else out
    return None
