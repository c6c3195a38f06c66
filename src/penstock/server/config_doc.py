"""docs/config.md, written from the schema: `python -m penstock.server.config_doc docs/config.md`."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.model import topic_config
from penstock.model.listeners import ACKS_NAMES, DEFAULTS
from penstock.server.config_schema import (
    DATA_DIR_DEFAULT,
    DATA_DIR_DOC,
    DIALECTS,
    KEYS,
    SECTIONS,
    Config,
    Listener,
    env_name,
)
from penstock.server.deadlines import FIELDS, deadlines_of

_INTRO = """\
# Configuration

<!-- Written by `make docs` from src/penstock/server/config_schema.py and src/penstock/model/topic_config.py. -->

A value comes from the last of these that names it: the default, the YAML file given with `--config`, the environment,
the command line. `penstock config` prints every effective value and where it came from. A key that is not listed here
is an error, and so is a value that would not be honoured.

```yaml
data_dir: /var/lib/penstock
listeners:
  kafka:
    - 127.0.0.1:9092
    - host: 0.0.0.0
      port: 19092
      advertised_host: broker.example.org
  fluxgo:
    host: 127.0.0.1
    port: 9898
    idle_deadline_ms: 60000
storage:
  flush: acks
topic_defaults:
  retention.ms: 86400000
```

In the environment a key is `PENSTOCK_SECTION__KEY`, with two underscores between section and key.
"""

_LISTENERS = """\
A mapping from dialect to one or several addresses, each `HOST:PORT` or a mapping with the fields below. In the
environment: `PENSTOCK_LISTENERS__KAFKA=127.0.0.1:9092,0.0.0.0:19092`. On the command line: `--listen kafka=HOST:PORT`,
once for each address; these replace all listeners of the file and the environment. A file's listeners replace the
default ones.
"""

_DIALECTS = """\
What a dialect does that its protocol cannot be asked for is what the original broker does. With `acks: leader` a power cut
may take what was answered last; `acks: all` makes it as safe as Kafka's `acks=all`. The largest frame cannot be set.
"""

_DEADLINES = """\
A deadline that a listener does not set is the one that is set under `net`. Where that is not set either, it is that of the
dialect: FluxGo's and FlyMQ's are those of the originals, the others are ours.
"""

_TOPIC_DEFAULTS = """\
What topics have that do not say otherwise: Kafka's topic configs by Kafka's names. They can be set for one topic when it
is created and changed while it is in use (`penstock topics alter`, or any Kafka admin client). In the environment dots
are underscores: `PENSTOCK_TOPIC_DEFAULTS__RETENTION_MS`. A config that is not listed is refused with INVALID_CONFIG.
"""


def render() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRO
    yield from _table(
        ("key", "environment", "default", "meaning"),
        [("`data_dir`", "`PENSTOCK_DATA_DIR`", f"`{DATA_DIR_DEFAULT}`", DATA_DIR_DOC)],
    )
    yield from _heading("listeners", _LISTENERS)
    fields = msgspec.structs.fields(Listener)
    yield from _table(("field", "meaning"), [(f"`{f.name}`", typing.get_args(f.type)[1].description) for f in fields])
    yield ""
    yield _DEADLINES
    unset = Config()
    rows = []
    for dialect, listener in DIALECTS.items():
        deadlines = deadlines_of(dialect, listener, unset)
        rows.append((f"`{dialect}`", f"`{listener}`", *(f"`{getattr(deadlines, field)}`" for field in FIELDS)))
    yield from _table(("dialect", "default address", *(f"`{field}`" for field in FIELDS)), rows)
    yield _DIALECTS
    yield from _table(
        ("dialect", "`acks`", "`creates_topics`", "`partitions`", "largest frame, bytes"),
        [
            (
                f"`{dialect}`",
                f"`{ACKS_NAMES[default.acks]}`",
                f"`{str(default.creates_topics).lower()}`",
                f"`{default.partitions}`",
                f"{default.frame_bytes_max:,}",
            )
            for dialect, default in DEFAULTS.items()
        ],
    )
    for section, struct in SECTIONS.items():
        yield from _heading(section, f"{struct.__doc__}\n")
        yield from _table(
            ("key", "environment", "takes", "default", "meaning"),
            [
                (f"`{key.name}`", f"`{key.env}`", key.takes, _value(key.default), key.doc)
                for key in KEYS.values()
                if key.section == section
            ],
        )
    yield from _heading("topic_defaults", _TOPIC_DEFAULTS)
    yield from _table(
        ("config", "environment", "type", "default", "meaning"),
        [
            (f"`{key.name}`", f"`{env_name('topic_defaults', key.name)}`", key.type.value, _value(key.default), key.doc)
            for key in topic_config.KEYS.values()
        ],
    )


def _heading(name: str, text: str) -> Iterator[str]:
    yield ""
    yield f"## {name}"
    yield ""
    yield text


def _value(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{value}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def main() -> None:
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
