# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, as the model's own tokenizer does it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tokenizers

from colibri.errors import TokenizerError


class Tokenizer:
    """A Hugging Face ``tokenizer.json``.

    Parameters
    ----------
    data : bytes
        Content of the file.
    name : str
        For messages.
    """

    def __init__(self, data: bytes, *, name: str = "tokenizer") -> None:
        self.name = name
        try:
            self._inner = tokenizers.Tokenizer.from_buffer(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of the package is no Exception
            raise TokenizerError(f"not a tokenizer.json: {error}", file=name) from None

    @property
    def vocabulary(self) -> int:
        """Token ids, those added to the model's own included."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; `special` adds what the tokenizer puts around one."""
        try:
            return list(self._inner.encode(text, add_special_tokens=special).ids)
        except (UnicodeEncodeError, TypeError) as error:  # a lone surrogate
            raise TokenizerError(f"text is not valid Unicode: {error}", file=self.name) from None

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Text of token ids; `special` keeps tokens such as the end of a text."""
        known = list(ids)
        if any(not 0 <= token < 2**32 for token in known):
            raise TokenizerError("a token id is not in 0 .. 2^32 - 1", file=self.name)
        return str(self._inner.decode(known, skip_special_tokens=not special))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Text of each token; what cannot stand alone (part of a character) is in the next."""
        out: list[str] = []
        before = ""
        for end in range(1, len(ids) + 1):
            text = self.decode(ids[:end])
            whole = text.removesuffix("\ufffd") if end < len(ids) else text
            out.append(whole[len(before) :])
            before = whole if len(whole) > len(before) else before
        return out
