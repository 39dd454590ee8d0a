"""`python -m rig`, with `tests/chaos` on the path: one round, or a soak."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[1:1] = [
    str(Path(__file__).resolve().parents[2] / "integration"),
    str(Path(__file__).resolve().parents[3]),
]

from rig.command import main  # noqa: E402 - only now it finds what it imports

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
