"""Backends of other packages that cannot be used are refused by name, and leave the others alone."""

import pytest

from model import attention
from model.record.errors import UserError

FILES = {
    "raises.py": "1 / 0\n",
    "syntax.py": "def (\n",
    "number.py": "backend = 3\n",
    "silent.py": "from model.attention import Backend\nbackend = Backend('', lambda case: [], lambda *_: None)\n",
    "bare.py": "from model.attention import Backend\nbackend = Backend()\n",
    "strange.py": "from model.attention import Backend\nbackend = Backend('', None, None, launch=None)\n",
    "fine.py": "from model.attention import Backend, Launches\n"
    "backend = Backend('', lambda case: [], lambda *_: None, Launches())\n",
}


@pytest.mark.refused
@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        (
            "mine",
            "nowhere:backend",
            r"'mine' \(nowhere:backend\) cannot be imported: ModuleNotFoundError: No module",
        ),
        ("mine", "raises:backend", "cannot be imported: ZeroDivisionError: division by zero"),
        ("mine", "syntax:backend", "cannot be imported: SyntaxError: "),
        (
            "mine",
            "fine:missing",
            "cannot be imported: AttributeError: module 'fine' has no attribute 'missing'",
        ),
        (
            "mine",
            "silent:backend",
            r"/silent.py:2: `Backend\(...\)` lacks `launches` \(the kernels that it runs\): see docs/backends.md",
        ),
        (
            "mine",
            "bare:backend",
            r"/bare.py:2: `Backend\(...\)` lacks `summary` \(one line for tables and reports\); `unsupported_reasons` \(for a `Case`, every reason why it cannot run here, each saying what to do about it\); `attend` ",
        ),
        (
            "mine",
            "strange:backend",
            r"/strange.py:2: `Backend` has no field 'launch' \(did you mean 'launches'\? valid: summary, ",
        ),
        ("mine", "number:backend", "attention backend 'mine' is of type int, not Backend"),
        (
            "flash",
            "fine:backend",
            "named 'flash', of this project and package planted: uninstall or rename one",
        ),
    ],
)
def test_a_backend_that_cannot_be_loaded_is_refused_with_the_cause(
    tmp_path, registered, name, target, message
):
    (site := tmp_path / "site").mkdir()
    for file, text in FILES.items():
        (site / file).write_text(text)
    registered({name: target, "fine": "fine:backend"}, site)
    with pytest.raises(UserError, match=message):
        attention.load(name)
    assert attention.load("fine").summary == ""
    assert attention.load("math").summary
