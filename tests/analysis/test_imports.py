"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys


def test_the_analysis_package_starts_without_heavy_imports() -> None:
    code = (
        "import sys, analysis.store.collect, analysis.query.formats, analysis.report.build, analysis.charts\n"
        "assert len(analysis.charts.names()) >= 5\n"
        "print({'torch', 'duckdb', 'altair', 'vl_convert', 'pyarrow', 'jinja2', 'scipy'} & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "set()"
