"""A rank that prints every byte there is, as many random ones as it is told to, and then the lines
of a trainer.
"""

import json
import os
import socket
import sys
import time

STEP_S = 0.05
rank, world, steps, hog = (
    int(os.environ["RANK"]),
    int(sys.argv[1]),
    int(sys.argv[2]),
    int(sys.argv[4]),
)
left = int(float(sys.argv[3]) * 1e6)
where = f"node_rank={rank} host={socket.gethostname()} pid={os.getpid()} device=CPU"
print(f"orch rank={rank} local_rank=0 world_size={world} {where}")
print(json.dumps([os.getcwd(), os.environ["WORDS"], os.environ.get("ODD", "")]), flush=True)
while left > 0:
    left -= sys.stdout.buffer.write(os.urandom(min(left, 50_000)))
sys.stdout.buffer.write(bytes(range(256)) * 2)
# A character that is split between two reads, and one that never ends.
for piece in (b"\xe2", b"\x82\xac", b"\xf0\x9f", b"\r\n\x1b[2J\x1b]0;title\x07\r", b"\n"):
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    time.sleep(0.02)
sys.stderr.buffer.write(bytes(range(256)) + b"without an end")
sys.stderr.buffer.flush()
taken = []
while rank == hog:
    taken.append(b"x" * (8 << 20))
    time.sleep(0.01)
for step in range(steps + 1):
    if rank == 0:
        took, samples = (STEP_S, world) if step else (0.0, 0)
        print(
            f"orch step={step} t={time.monotonic():.6f} step_time_s={took:.6f} samples={samples} loss=nan",
            flush=True,
        )
    time.sleep(STEP_S)
if rank == 0:
    done = {
        "world_size": world, "ranks": list(range(world)), "hosts": [], "devices": {"CPU": world}, "steps": steps,
        "model": "chatter", "dtype": "fp32", "batch_size": 1, "global_batch": world, "framework": "chatter",
        "framework_version": "1", "backend": "none", "simulated": True,
    }  # fmt: skip
    print("orch done " + json.dumps(done), flush=True)
