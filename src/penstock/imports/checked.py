"""Records with a checksum over their payload: MiniKafka's.

Its threads write field by field to one file without a lock per record, so a log written by several producers has records in
pieces, and complete records between the pieces of others. A record is accepted if its three lengths agree and the checksum
matches, whatever its id. After other bytes, the search continues at the next position with an acceptable record.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.frames import Frame, Head, Parse, what_is_wrong
from penstock.imports.source import Findings

WRONG_CHECKSUM = "the checksum does not match the payload"


def checked_frames(
    file: FileBytes, parse: Parse, head: Head, findings: Findings, position: int = 0
) -> Iterator[tuple[int, Frame]]:
    """Valid frames in file order, each with its position."""
    while position < file.size:
        frame = parse(file, position)
        if frame is not None and frame.sound:
            yield position, frame
            position = frame.end
            continue
        if frame is not None and (frame.end == file.size or _is_sound(file, parse, frame.end)):
            end = frame.end
        else:
            # Complete records may be inside the claimed length.
            end = next((at for at in head.places(file, position + 1) if _is_sound(file, parse, at)), file.size)
        reason = what_is_wrong(file, end) if frame is None else WRONG_CHECKSUM
        findings.add(str(file.path), position, end - position, reason)
        position = end


def _is_sound(file: FileBytes, parse: Parse, position: int) -> bool:
    frame = parse(file, position)
    return frame is not None and frame.sound
