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

Penstock takes each value from the last of these sources that sets it: the default, the YAML file given with `--config`, the
environment, the command line. `penstock config` prints every effective value and its source. Unknown keys and invalid values
are errors.

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

The environment variable of a key is `PENSTOCK_SECTION__KEY`, with two underscores between section and key.
"""

_LISTENERS = """\
A mapping from dialect to one or more addresses. Each address is `HOST:PORT` or a mapping with the fields below. In the
environment: `PENSTOCK_LISTENERS__KAFKA=127.0.0.1:9092,0.0.0.0:19092`. On the command line: `--listen kafka=HOST:PORT`,
once for each address. Listeners on the command line replace all listeners of the file and the environment. Listeners in the
file replace the default ones.
"""

_DIALECTS = """\
The defaults of a dialect are what the original broker does. With `acks: leader`, a power cut may lose the last acknowledged
records; `acks: all` is as safe as Kafka's `acks=all`. The maximum frame size is fixed.
"""

_DEADLINES = """\
A deadline that is not set for a listener is taken from `net`. If it is not set there either, the default of the dialect
applies. The defaults of FluxGo and FlyMQ are those of the original brokers.
"""

_TOPIC_DEFAULTS = """\
Defaults for the topic configs, under the names that Kafka uses. You can set them for one topic when you create it, and
change them later (`penstock topics alter`, or any Kafka admin client). In the environment, dots become underscores:
`PENSTOCK_TOPIC_DEFAULTS__RETENTION_MS`. A config that is not listed is rejected with INVALID_CONFIG.
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
        ("dialect", "`acks`", "`creates_topics`", "`partitions`", "maximum frame size in bytes"),
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
            ("key", "environment", "values", "default", "meaning"),
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
