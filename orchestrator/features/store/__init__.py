"""Sealed archives that a team shares: in a directory, on a machine, in a bucket.

    orch-store.json       what makes a place a store
    archives/<seal>.tar   sealed archives, each under its seal, which no two have and which proves every byte of it
    archives/<seal>.tar.<key>.sig
    archives.json         the names in archives/, for web servers, which list nothing

Nothing is changed in place, and nothing is locked: files appear complete, by being renamed. What a
list shows of an archive is read from its head, which the seal proves, and remembered in the
project. Stores of earlier versions also have an index.sqlite, which is not read.
"""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="Keep and share",
    commands={
        "commands": {
            "push": "Put sealed benches into a store that a team shares.",
            "pull": "List a store, or unpack benches from it into the project.",
        }
    },
    provides={"store": "provider"},
)
