"""Sealed archives that a team shares: in a directory, on a machine, in a bucket.

    orch-store.json       what makes a place a store
    archives/<seal>.tar   sealed archives, each under its seal, which no two have and which says every byte of it
    archives/<seal>.tar.sig
    index.sqlite          what the archives say of themselves; derived from them, and replaced as a whole

Nothing is changed in place, and nothing is locked: files appear complete, by being renamed. A push
that is killed, or made at the same time as others, leaves at worst an index that lacks archives,
which readers and the next push notice.
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
