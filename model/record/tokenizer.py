"""Turns text into ids: UTF-8 bytes, or a tokenizer of Hugging Face's library. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from model.record.errors import UserError
from model.record.units import first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens = NDArray[np.int64]

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"


class Tokenizer(Protocol):
    """Text to ids.

    Attributes:
        vocab_size: the largest id plus one.
        begin, end: ids that stand before and after each document; `begin` is None where there is none.
    """

    vocab_size: int
    begin: int | None
    end: int

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Ids of a text, without special tokens; with a limit, at least that many if the text has them."""
        ...


class Bytes:
    """UTF-8 bytes as tokens: ids 0-255, then begin and end of a document. Needs no file and no download."""

    vocab_size = 258
    begin: int | None = 256
    end = 257

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """One id for each byte."""
        import numpy as np

        return np.frombuffer(text[:limit].encode("utf-8", "replace"), np.uint8).astype(np.int64)


class HuggingFace:
    """A tokenizer.json of the Hugging Face tokenizers library."""

    _CHARACTERS = 8  # for each token that is wanted of a long text, at first
    _MARGIN = 64  # tokens beside a cut, which may differ from those of the whole text

    def __init__(self, name: str) -> None:
        from tokenizers import Tokenizer as Library

        try:
            self._library = Library.from_file(str(tokenizer_file(name)))
        except UserError:
            raise
        except Exception as error:  # the library raises bare Exceptions
            raise unusable_tokenizer(name, error) from error
        self._library.no_truncation()  # a file may ask for it, and would so drop the rest of each document
        self._library.no_padding()
        self.vocab_size = max(self._library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        begin, end = special_tokens(name)
        if end is None:
            added = self._library.get_added_tokens_decoder().values()
            choices = ", ".join(token.content for token in added if token.special) or "none"
            raise UserError(
                f"tokenizer '{name}' does not say which token ends a document: write "
                f'{{"bos_token": ..., "eos_token": ...}} into a {_CONFIG} beside its {_FILE} '
                f"(its special tokens: {choices})"
            )
        self.end = self._id(name, end)
        # If one token is both, it stands between documents, and once is enough.
        self.begin = None if begin is None or begin == end else self._id(name, begin)

    def _id(self, name: str, token: str) -> int:
        token_id: int | None = self._library.token_to_id(token)
        if token_id is None:
            raise UserError(
                f"tokenizer '{name}': its {_CONFIG} names the token '{token}', which its vocabulary lacks"
            )
        return token_id

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """The library's ids. With a limit a long text is cut first: its tokens would take the step's time."""
        import numpy as np

        cut = len(text) if limit is None else self._CHARACTERS * (limit + self._MARGIN)
        while True:
            ids = self._library.encode(text[:cut], add_special_tokens=False).ids
            if limit is None or cut >= len(text) or len(ids) >= limit + self._MARGIN:
                return np.asarray(ids if cut >= len(text) else ids[:limit], dtype=np.int64)
            cut *= 2


def load_tokenizer(name: str) -> Tokenizer:
    """Load `bytes` or a Hugging Face tokenizer.

    Raises:
        UserError: it cannot be loaded, or does not say which token ends a document.
    """
    return Bytes() if name == "bytes" else HuggingFace(name)


def tokenizer_file(name: str) -> Path:
    """The tokenizer.json of a file, a folder or a hub name, which is downloaded if need be.

    Raises:
        UserError: there is none.
    """
    path = _local_tokenizer(name)
    return path if path.is_file() else _from_hub(name, _FILE)


def special_tokens(name: str) -> tuple[str | None, str | None]:
    """The tokens that begin and end a document, as the tokenizer_config.json beside a tokenizer.json says.

    Raises:
        UserError: that file is not JSON.
    """
    path = tokenizer_file(name).with_name(_CONFIG)
    if not path.is_file():
        if _local_tokenizer(name).is_file():
            return None, None
        try:
            path = _from_hub(name, _CONFIG)
        except FileNotFoundError:
            return None, None
    try:
        settings: dict[str, Any] = json.loads(path.read_bytes())
        begin, end = (settings.get(key) for key in ("bos_token", "eos_token"))
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: {error}") from error
    begin, end = (token.get("content") if isinstance(token, dict) else token for token in (begin, end))
    return begin, end


def _local_tokenizer(name: str) -> Path:
    return Path(name) / _FILE if Path(name).is_dir() else Path(name)


def _from_hub(name: str, file: str) -> Path:
    """Fetch a file as the tokenizers library does, and return its path, so that it can be hashed."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:  # from the hub, the network, or the name
        offline = isinstance(error, LocalEntryNotFoundError)
        if file == _CONFIG and isinstance(error, EntryNotFoundError) and not offline:
            raise FileNotFoundError(file) from error
        raise unusable_tokenizer(name, error) from error


def unusable_tokenizer(name: str, error: Exception) -> UserError:
    """An error that says why a tokenizer cannot be loaded, and what may be named."""
    valid = "bytes, a tokenizer.json, its folder, or a hub name"
    return UserError(f"tokenizer '{name}': {first_line(error)}; valid: {valid}")
