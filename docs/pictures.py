"""Takes the README's picture of the published report, as `make pictures` does. Needs Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "reports/published/backends-h200/index.html"
PICTURE = HERE / "docs/report.png"
SIZE = (1180, 900)  # pixels
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def take(page: Path, picture: Path, size: tuple[int, int] = SIZE) -> None:
    """Write what a window shows of a page, in the light theme, once its figures are drawn."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if not browser:
        sys.exit(f"no {' or '.join(BROWSERS)} on PATH: run `make system`")
    with TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                "--virtual-time-budget=10000",  # milliseconds of the page's time, which pass at once
                f"--screenshot={picture}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    take(PAGE, PICTURE)
