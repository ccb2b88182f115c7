"""Reading keys, and keeping them out of everything that is written down.

Servers echo keys: in the body of a 401, in headers, in the reason phrase, in an answer. What comes
from the network is therefore cleaned before any other code sees it, and so are the log records of
the SDK and of the HTTP packages beneath it, which see the network first.
"""

from __future__ import annotations

import base64
import logging
import os
from pathlib import Path
from urllib.parse import quote

from kernelcast.errors import SetupError

# Shorter ones are words such as "none", "EMPTY" or "ollama": no secrets, and to strike them out
# would damage answers.
_SHORTEST_SECRET = 12
_STRUCK_OUT = "***"
_LOGGERS = ("openai", "httpx", "httpx2", "httpcore", "httpcore2")


def read_key(variable: str, file: str) -> str:
    """The key in the file if one is named, else in the variable; empty if there is none."""
    origin = f"the file {file}" if file else f"the environment variable {variable}"
    try:
        found = Path(file).expanduser().read_text() if file else os.environ.get(variable, "")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(
            f"cannot read a key from {origin} ({type(error).__name__}): mend api_key_file"
        ) from None
    key = found.strip()
    # The HTTP package would quote the whole header in its complaint.
    if not all("!" <= character <= "~" for character in key):
        raise SetupError(
            f"{origin} holds more than a key (a space, a line break or a letter beyond ASCII): "
            "put the key there and nothing else"
        )
    REDACTOR.learn(key)
    return key


class Redactor:
    """Strikes out every key it has learnt, in the forms in which keys leak; also a log filter."""

    def __init__(self) -> None:
        self._forms: tuple[str, ...] = ()

    def learn(self, key: str) -> None:
        """Strike this key out from now on, here and in the logs of the SDK."""
        if len(key) >= _SHORTEST_SECRET:
            self._forms = tuple(
                sorted({*self._forms, *_forms(key)}, key=lambda form: (-len(form), form))
            )
        # Filters of a parent do not see what its children log, hence each logger by itself.
        for name in (*_LOGGERS, *logging.Logger.manager.loggerDict):
            if name.partition(".")[0] in _LOGGERS:
                logging.getLogger(name).addFilter(self)

    def text(self, text: str) -> str:
        """The text without keys."""
        for form in self._forms:
            text = text.replace(form, _STRUCK_OUT)
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes without keys."""
        for form in self._forms:
            data = data.replace(form.encode(), _STRUCK_OUT.encode())
        return data

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean a log record and let it pass."""
        record.msg, record.args = self.text(record.getMessage()), ()
        if record.exc_info:
            record.exc_text = self.text(logging.Formatter().formatException(record.exc_info))
        return True


REDACTOR = Redactor()


def _forms(key: str) -> set[str]:
    data = key.encode()
    percent = "".join(f"%{byte:02x}" for byte in data)
    forms = {key, key[::-1], data.hex(), data.hex().upper(), quote(key, safe="")}
    forms |= {percent, percent.upper()}
    for offset in range(3):
        # In base64 the same bytes read differently at each of three offsets; what is left of the
        # first and last digits would depend on the neighbours, so they are not part of the form.
        digits = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
        whole = digits[offset + 1 if offset else 0 : -1 if (offset + len(data)) % 3 else None]
        forms |= {whole, whole.translate(str.maketrans("+/", "-_"))}
    return forms
