"""`penstock`: where every command begins, and where every failure becomes one line and an exit code."""

from __future__ import annotations

import sys

from penstock.cli.failure import Failed, Misused
from penstock.cli.output import all_written, open_closed_files
from penstock.cli.serve_flags import parse_plain
from penstock.model.errors import StartError
from penstock.model.lean_start import leave_out_test_tools


def main() -> None:
    leave_out_test_tools()
    open_closed_files()
    try:
        with all_written():
            sys.exit(_run(sys.argv[1:]))
    except Failed as error:
        _say(error)
        sys.exit(error.exit_code)
    except StartError as error:
        _say(error)
        sys.exit(2)
    except OverflowError as error:  # of a client library, about a number that an option gave it
        _say(Misused(f"number out of range: {error}"))
        sys.exit(Misused.exit_code)
    except KeyboardInterrupt:  # before a command could take care of it
        sys.exit(130)


def _say(error: Exception) -> None:
    """A server's words may be in it: control characters are escaped, so that they cannot drive the terminal."""
    text = "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in str(error))
    print(f"penstock: {text}", file=sys.stderr)


def _run(arguments: list[str]) -> int:
    flags = parse_plain(arguments[1:]) if arguments[:1] == ["serve"] else None
    if flags is not None:
        config = flags.load()
        from penstock.server.main import run

        return run(config)
    from penstock.cli.app import app

    app(arguments, prog_name="penstock")
    return 0


if __name__ == "__main__":
    main()
