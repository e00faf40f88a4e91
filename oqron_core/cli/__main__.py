"""The same command as ``python -m oqron_core.cli``."""

from __future__ import annotations

from oqron_core.cli import main


if __name__ == "__main__":
    main()
