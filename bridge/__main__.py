"""`python -m bridge`, and what the installed command runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C gives the exit code 130, also while all of it is still being loaded."""
    try:
        from bridge.cli import cli
    except ModuleNotFoundError as missing:  # the extra "cli"
        if (missing.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        print(f"Error: {missing.name} is missing: pip install 'voice-tool-bridge[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    cli(prog_name="voice-tool-bridge")


if __name__ == "__main__":
    main()
