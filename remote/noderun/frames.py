"""The Python calls that a rank is in, with their source lines, from the output of faulthandler or
py-spy.

A name alone often says little: `store.wait(...)` and `time.sleep(...)` are calls of C functions,
which have no frame. The line of the caller names them.
"""

import ast
import contextlib
import re

FRAME = re.compile(
    r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>\S+)|^\s+(?P<spy>\S+) \((?P<path>.*):(?P<at>\d+)\)$'
)
THREAD = re.compile(r"^(Current thread |Thread )")
MOST_CALLS = 8
MOST_BESIDE = 16
MOST_SOURCE_BYTES = 1 << 20
MOST_CODE = 160
MOST_POLLING_LINES = 10
PYTHON_LIBRARY = re.compile(r"/lib(64)?/python3[^/]*/(?!site-packages/|dist-packages/)|^<frozen ")
CONSTANTS = ("Constant", "NameConstant", "Num")
"""Names of the nodes of ``ast`` for a constant: before Python 3.8 each kind had its own, which newer
versions warn of or no longer have.
"""
TRAINS = re.compile(r"backward|all_reduce|all_gather|barrier|broadcast|loader|\bnext\(")
"""What stands in the loop of a training program, and in none that only waits for something."""


def calls_of(text, pid):
    """Return the innermost calls of a process: ``calls`` of the main thread, ``beside`` of each
    other thread.

    Every call is {"name", "file", "line"}. The first ones of the main thread have ``code``, their
    source line, and ``polls`` if the line is in a short loop that ends by itself.
    """
    threads = threads_of(text)
    if not threads:
        return {}
    # py-spy names threads and begins with the main one; faulthandler writes that one last.
    main = threads.pop(0 if '"MainThread"' in text else -1)
    own = True
    for call in main[:3]:
        lines = source(pid, call["file"])
        call["code"] = statement(lines, call["line"])
        if own and not PYTHON_LIBRARY.search(call["file"]):
            own = False
            call["polls"] = polls(lines, call["line"])
    return {"calls": main[:MOST_CALLS], "beside": [thread[:4] for thread in threads[:MOST_BESIDE]]}


def threads_of(text):
    """Return the calls of each thread, innermost first, in the order of the text."""
    threads = [[]]
    for line in text.splitlines():
        found = FRAME.search(line)
        if THREAD.match(line):
            threads.append([])
        elif found:
            name, path = (
                found.group("name") or found.group("spy"),
                found.group("file") or found.group("path"),
            )
            threads[-1].append(
                {
                    "name": name[:80],
                    "file": path[-200:],
                    "line": int(found.group("line") or found.group("at")),
                }
            )
    return [thread for thread in threads if thread]


def source(pid, path):
    """Return the lines of a source file as the process sees it; none if it cannot be read."""
    roots = ["/proc/%d/root" % pid, ""] if path.startswith("/") else ["/proc/%d/cwd/" % pid]
    for root in roots:
        with contextlib.suppress(OSError), open(root + path, "rb") as file:
            return file.read(MOST_SOURCE_BYTES).decode("utf-8", "replace").splitlines()
    return []


def statement(lines, number):
    """Return the source of a call that begins in a line: this line, and as many more as its
    parentheses need, up to three.
    """
    text = ""
    for line in lines[number - 1 : number + 2]:
        text = (text + " " + line.strip()).strip()
        if text.count("(") <= text.count(")"):
            break
    return text[:MOST_CODE]


def polls(lines, number):
    """Return True if a line stands in a short loop that waits for a condition, rather than in one
    that trains.
    """
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    within = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.While, ast.For)) and reaches(node, number)
    ]
    if not within:
        return False
    loop = max(within, key=lambda node: node.lineno)
    begin, end = loop.lineno, last_line(loop)
    if end - begin > MOST_POLLING_LINES or TRAINS.search("\n".join(lines[begin - 1 : end])):
        return False
    if isinstance(loop, ast.While) and type(loop.test).__name__ not in CONSTANTS:
        return True
    return any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))


def reaches(loop, number):
    """Return True if a line stands in the body of a loop."""
    return loop.body[0].lineno <= number <= last_line(loop)


def last_line(node):
    """Return the last line on which anything of a node begins."""
    return max(getattr(inner, "lineno", 0) for inner in ast.walk(node))
