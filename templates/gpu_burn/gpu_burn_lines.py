"""Start gpu_burn and print lines for each of its GPUs: the rate of each round of matrix products,
and the temperature after it.

    python gpu_burn_lines.py --directory DIR --seconds 70 --warmup-seconds 10 --log gpu_burn.out -- ./gpu_burn 70

gpu_burn writes all GPUs into one line, and rewrites it whenever one has ended a round. The first
round of a GPU includes its start, so it is not printed, nor are those of the warm-up. The exit
status is 0 only if gpu_burn found every GPU to be OK. Python 3.6 runs this.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

PROGRESS = re.compile(
    r"^(?P<percent>\d+\.\d)%  proc'd: (?P<rates>.*?)  errors: (?P<errors>.*?)  temps: (?P<temperatures>.*)$"
)
RATE = re.compile(r"(-?\d+) \((\d+) Gflop/s\)")
VERDICT = re.compile(r"^\tGPU (\d+): (OK|FAULTY)$")
LISTED = re.compile(r"^GPU \d+: .*UUID")


class Rounds:
    """The rounds of all GPUs, as gpu_burn's lines tell of them.

    A temperature belongs to a GPU only if gpu_burn uses all that nvidia-smi lists, because it takes
    them in that order.
    """

    def __init__(self, seconds, warmup_seconds):
        self.seconds, self.warmup_seconds = seconds, warmup_seconds
        self.done = {}  # products by GPU, when it was seen last
        self.listed = 0
        self.verdicts = {}

    def lines(self, text):
        """Return the lines to print for a line of gpu_burn."""
        if LISTED.match(text):
            self.listed += 1
        verdict = VERDICT.match(text)
        if verdict:
            self.verdicts[int(verdict.group(1))] = verdict.group(2)
        progress = PROGRESS.match(text)
        return self._rounds(progress) if progress else []

    def _rounds(self, progress):
        second = round(float(progress.group("percent")) * self.seconds / 100)
        rates = RATE.findall(progress.group("rates"))
        errors = re.findall(r"\d+", progress.group("errors"))
        temperatures = re.findall(r"\d+|--", progress.group("temperatures"))
        printed = []
        for gpu, (done, gflops) in enumerate(rates):
            before, self.done[gpu] = self.done.get(gpu, 0), int(done)
            if before > 0 and int(done) > before and second > self.warmup_seconds:
                printed.append(
                    f"gpu_burn gpu={gpu} second={second} gflops={gflops} errors={errors[gpu]}"
                )
                if self.listed == len(rates) and temperatures[gpu] != "--":
                    printed.append(
                        f"gpu_burn gpu={gpu} second={second} temperature_c={temperatures[gpu]}"
                    )
        return printed

    def fault(self):
        """Return in words what is wrong with the GPUs, empty if each is OK."""
        faulty = sorted(gpu for gpu, verdict in self.verdicts.items() if verdict != "OK")
        if not self.verdicts:
            return "expected gpu_burn's verdict on each GPU, got none"
        return (
            f"expected correct results, got wrong ones from GPU {', '.join(map(str, faulty))}"
            if faulty
            else ""
        )


def pieces(stream):
    """Yield what a program writes, by lines and carriage returns, each as soon as it is complete."""
    left = ""
    while True:
        chunk = stream.read1(65536)
        if not chunk:
            break
        *complete, left = re.split(r"[\r\n]", left + chunk.decode("ascii", "replace"))
        yield from complete
    yield left


def main():
    """Run the program behind ``--`` and end with its status, or with 1 if a GPU is faulty."""
    options = argparse.ArgumentParser()
    options.add_argument("--directory", required=True)
    options.add_argument("--seconds", type=int, required=True)
    options.add_argument("--warmup-seconds", type=int, required=True)
    options.add_argument("--log", required=True)
    options.add_argument("program", nargs="+")
    options = options.parse_args()
    rounds = Rounds(options.seconds, options.warmup_seconds)
    with Path(options.log).open("w", encoding="utf-8") as log:
        child = subprocess.Popen(options.program, cwd=options.directory, stdout=subprocess.PIPE)
        for piece in pieces(child.stdout):
            if piece:
                print(piece, file=log, flush=True)
            for line in rounds.lines(piece):
                print(line, flush=True)
    status = child.wait()
    if status:
        sys.exit(status if status > 0 else 128 - status)
    fault = rounds.fault()
    if fault:
        sys.exit(fault)


if __name__ == "__main__":
    main()
