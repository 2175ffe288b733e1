"""A program that measures each node alone, all at the same time: how often it hashes a megabyte in
a second, of CPU time with the option ``cpu_time``, which other processes of the machine do not take
away.

It is quick to start, so that many nodes of one machine can be measured. With ``vars: {slower: N}``
of a host it needs N times as long there, with ``vars: {broken: true}`` it exits with 3, with
``vars: {dies: true}`` it is killed while it measures, and with ``vars: {removes: FILE}`` it removes
that first.
"""

from __future__ import annotations

from pathlib import Path

FRAMEWORK = """\
title: hashes
measures: readings
models: {hashing: {}}
dtypes: {cpu: {none: none}, cuda: {none: none}}
defaults: {dtype: none, steps: 1, warmup_steps: 0, timeout_s: 120, repeats: 5}
options:
  seconds: {type: float, default: 0.3, minimum: 0.01, help: how long}
  cpu_time: {type: bool, default: false, help: count seconds of the program's own CPU time}
files: [{template: launch.sh.j2, path: launch.sh, mode: "0700"}]
probe: "print('{}')"
log:
  files: [node.out]
  nodes: every
  readings: '^hashed rate=(?P<rate>[0-9.]+)$'
  metrics: {rate: {unit: MB/s, better: higher, scope: node, across: each}}
"""
LAUNCH = """\
. ./env.sh
{% if host_vars.removes is defined %}
rm {{ host_vars.removes }}
{% endif %}
{% if host_vars.broken is defined %}
exit 3
{% endif %}
exec {{ python }} -I -S - <<'END'
import hashlib, os, time
clock = time.{{ "process_time" if options.cpu_time else "monotonic" }}
data, began, done = bytes(1 << 20), clock(), 0
while clock() - began < {{ options.seconds }}:
    for _ in range({{ host_vars.slower | default(1) }}):
        hashlib.sha256(data).digest()
    done += 1
{% if host_vars.dies is defined %}
    if done > 2:
        os.kill(os.getpid(), 9)
{% endif %}
print("hashed rate=%.3f" % (done / (clock() - began)))
END
"""


def write(project: Path) -> None:
    """Write the framework ``hashing`` into the templates of a project."""
    folder = project / "templates" / "hashing"
    folder.mkdir(parents=True)
    (folder / "framework.yaml").write_text(FRAMEWORK)
    (folder / "launch.sh.j2").write_text(LAUNCH)
