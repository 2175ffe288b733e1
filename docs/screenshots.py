"""Pictures for the docs: the report of a bench in light and dark, and its table as a terminal shows
it.

    python docs/screenshots.py BENCH FOLDER

Needs Chromium. The pictures of the docs show the four H200 of docs/results.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI

from orchestrator.record.rundir import BenchDir
from orchestrator.report import terminal
from orchestrator.results.bench import read_bench
from orchestrator.results.summary import summarize

COLUMNS = 104
PAGE = """<!DOCTYPE html><meta charset=utf-8><style>
body {{ margin: 0; padding: 18px; background: {background}; color: {foreground} }}
pre {{ margin: 0; font: 15px/18px "DejaVu Sans Mono", monospace }}
</style><pre>{code}</pre>"""


def main() -> None:
    """Write report-light.png, report-dark.png and terminal.png."""
    bench, folder = Path(sys.argv[1]), Path(sys.argv[2])
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        sys.exit("no Chromium here")
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        report, table = Path(work) / "report.html", Path(work) / "table.html"
        argv = [sys.executable, "-m", "orchestrator", "summarize", str(bench), "--format", "html"]
        report.write_bytes(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
        console = Console(
            record=True,
            width=COLUMNS,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
        )
        terminal.render(summarize(read_bench(BenchDir.open(bench))), console)
        lines = console.export_text(clear=False).count("\n") + 1
        table.write_text(console.export_html(theme=MONOKAI, inline_styles=True, code_format=PAGE))
        for name, page, scheme, size in (
            ("report-light", report, 1, "1240,1300"),
            ("report-dark", report, 0, "1240,1300"),
            ("terminal", table, 0, f"{COLUMNS * 9 + 60},{lines * 18 + 22}"),
        ):
            target = (folder / f"{name}.png").absolute()
            flags = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={work}/browser",
            ]
            flags += [
                f"--blink-settings=preferredColorScheme={scheme}",
                f"--window-size={size}",
                f"--screenshot={target}",
            ]
            subprocess.run(
                [browser, *flags, page.as_uri()], check=True, stderr=subprocess.DEVNULL, timeout=120
            )
            Image.open(target).quantize(64).save(target, optimize=True)
            print(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
