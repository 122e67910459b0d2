"""The product's wheel for a platform that has its own Spark: the same code, without its list of requirements.

Installing a wheel installs what it requires; a second pyspark on the path of a running Spark breaks it. So the wheel
goes without, and requirements.txt names what is left.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path

from distributary.errors import BadInput

_REMEDY = "Make one with: python -m pip wheel --no-deps -w dist ."


def without_requirements(wheel: Path) -> bytes:
    """The wheel's bytes without `Requires-Dist` (PyPA, "Core metadata", "Binary distribution format").

    Raises BadInput: it is not a wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as source:
            bodies = {info.filename: source.read(info) for info in source.infolist()}
    except (OSError, zipfile.BadZipFile) as e:
        raise BadInput(detail=f"--wheel {wheel} cannot be read: {e}. {_REMEDY}") from e
    record = next((name for name in bodies if name.endswith(".dist-info/RECORD")), None)
    metadata = next((name for name in bodies if name.endswith(".dist-info/METADATA")), None)
    if record is None or metadata is None:
        raise BadInput(detail=f"--wheel {wheel} is not a wheel: it has no RECORD. {_REMEDY}")
    bodies[metadata] = _slim(bodies[metadata])
    lines = [_record_line(name, body) for name, body in bodies.items() if name != record]
    bodies[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as written:
        for name, body in bodies.items():
            # One date for all, so that the same wheel gives the same bytes.
            written.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), body, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def _slim(metadata: bytes) -> bytes:
    head, blank, body = metadata.partition(b"\n\n")
    unwanted = (b"Requires-Dist:", b"Provides-Extra:")
    kept_lines = [line for line in head.splitlines() if not line.startswith(unwanted)]
    return b"\n".join(kept_lines) + blank + body


def _record_line(name: str, body: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(body)}"
