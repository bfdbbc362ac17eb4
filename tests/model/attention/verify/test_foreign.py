"""Backends of other packages that cannot be used are refused by name, and leave the others alone."""

import pytest

from model import attention
from model.record.errors import UserError

FILES = {
    "raises.py": "1 / 0\n",
    "syntax.py": "def (\n",
    "number.py": "backend = 3\n",
    "silent.py": "from model.attention import Backend\nbackend = Backend('', lambda case: [], lambda *_: None)\n",
    "fine.py": "from model.attention import Backend, Launches\n"
    "backend = Backend('', lambda case: [], lambda *_: None, Launches())\n",
}


@pytest.mark.refused
@pytest.mark.parametrize(
    ("name", "where", "says"),
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
            r"cannot be imported: TypeError: Backend.__init__\(\) missing 1 required positional argument: 'launches'",
        ),
        ("mine", "number:backend", "attention backend 'mine' is of type int, not Backend"),
        (
            "flash",
            "fine:backend",
            "named 'flash', of this project and package planted: uninstall or rename one",
        ),
    ],
)
def test_a_backend_that_cannot_be_loaded_is_refused_with_the_cause(tmp_path, registered, name, where, says):
    (site := tmp_path / "site").mkdir()
    for file, text in FILES.items():
        (site / file).write_text(text)
    registered({name: where, "fine": "fine:backend"}, site)
    with pytest.raises(UserError, match=says):
        attention.load(name)
    assert attention.load("fine").summary == ""
    assert attention.load("math").summary
