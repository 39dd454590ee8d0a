"""``python -m example_app.demo``: two nights of billing, one with the fence and one without."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the demo, or say what has to be installed for it."""
    try:
        from example_app.demo.show import main as show
    except ModuleNotFoundError as missing:
        sys.exit(
            f"The demo needs {missing.name}: run `make demo`, or pip install -e '.[demo]' in the checkout."
        )
    return show()


if __name__ == "__main__":
    sys.exit(main())
