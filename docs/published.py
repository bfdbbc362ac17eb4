"""Builds the published reports again from the records that they carry, as `make published` does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from analysis.audit.audit import audit, rebuild

PUBLISHED = Path(__file__).resolve().parents[1] / "reports/published"


def main() -> None:
    """Build all of them, the index last, and audit them. Exit with what does not match."""
    reports = sorted(path.parents[1] for path in PUBLISHED.glob("*/data/manifest.json"))
    for report in reports:
        with TemporaryDirectory(dir=PUBLISHED) as scratch:
            out = Path(scratch) / report.name
            out.mkdir()
            rebuild(report, out, shared_script=True)
            shutil.rmtree(report)
            out.rename(report)
    rebuild(PUBLISHED, PUBLISHED)
    wrong = [finding for report in (*reports, PUBLISHED) for finding in audit(report).findings]
    sys.exit("\n".join(map(str, wrong)) or None)


if __name__ == "__main__":
    main()
