"""`python -m penstock.server`: the broker without the rest of the command line, so that it starts at once."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from penstock.model.errors import StartError
from penstock.model.lean_start import leave_out_test_tools
from penstock.server.config import load
from penstock.server.main import EXIT_UNUSABLE, run


def main() -> int:
    leave_out_test_tools()
    parser = argparse.ArgumentParser(prog="python -m penstock.server", description="Run the broker in the foreground.")
    parser.add_argument("--config", type=Path, help="YAML config file")
    parser.add_argument("--data-dir", type=Path, help="data directory")
    parser.add_argument(
        "--listen", action="append", metavar="DIALECT=HOST:PORT", help="address to listen on; repeatable"
    )
    parser.add_argument("--stop-on-eof", action="store_true", help="stop when standard input is closed")
    parser.add_argument("--share-ports", action="store_true", help="let the parent process hold the ports too")
    arguments = parser.parse_args()
    flags: dict[str, object] = {}
    if arguments.data_dir is not None:
        flags["data_dir"] = arguments.data_dir
    if arguments.listen:
        flags["listeners"] = arguments.listen
    try:
        config = load(arguments.config, os.environ, flags)
    except StartError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    return run(config, stop_on_eof=arguments.stop_on_eof, share_ports=arguments.share_ports)


if __name__ == "__main__":
    sys.exit(main())
