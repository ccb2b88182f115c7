"""Reading keys, and keeping them out of everything that is written.

Servers echo keys in error bodies, headers, reason phrases and answers. Everything that comes from
the network is redacted before other code reads it. So are the log records of the SDK and of its
HTTP packages, which read the network first.
"""

from __future__ import annotations

import base64
import logging
import os
from pathlib import Path
from urllib.parse import quote

from kernelcast.errors import SetupError

# Shorter keys are words such as "none" or "ollama". Redacting them would damage answers.
_SHORTEST_SECRET = 12
_REDACTED = "***"
_LOGGERS = ("openai", "httpx", "httpx2", "httpcore", "httpcore2")


def read_key(variable: str, file: str) -> str:
    """Read the key from the file if one is named, else from the variable; it may be empty.

    Raises:
        SetupError: The file cannot be read, or the text is not a key.
    """
    origin = f"the file {file}" if file else f"the environment variable {variable}"
    try:
        text = Path(file).expanduser().read_text() if file else os.environ.get(variable, "")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(
            f"cannot read a key from {origin} ({type(error).__name__}): correct api_key_file"
        ) from None
    key = text.strip()
    # The HTTP package would quote the whole header in its error message.
    if not all("!" <= character <= "~" for character in key):
        raise SetupError(
            f"{origin} holds more than a key (a space, a line break or a character outside ASCII): "
            "put only the key there"
        )
    REDACTOR.learn(key)
    return key


class Redactor:
    """Replaces every known key, in each encoding in which keys leak. It is also a log filter."""

    def __init__(self) -> None:
        self._forms: tuple[str, ...] = ()

    def learn(self, key: str) -> None:
        """Redact this key from now on, also in the logs of the SDK."""
        if len(key) >= _SHORTEST_SECRET:
            self._forms = tuple(
                sorted({*self._forms, *_forms(key)}, key=lambda form: (-len(form), form))
            )
        # A logger's filter does not apply to its children, so each logger gets the filter.
        for name in (*_LOGGERS, *logging.Logger.manager.loggerDict):
            if name.partition(".")[0] in _LOGGERS:
                logging.getLogger(name).addFilter(self)

    def text(self, text: str) -> str:
        """Return the text without keys."""
        for form in self._forms:
            text = text.replace(form, _REDACTED)
        return text

    def data(self, data: bytes) -> bytes:
        """Return the bytes without keys."""
        for form in self._forms:
            data = data.replace(form.encode(), _REDACTED.encode())
        return data

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a log record and let it pass."""
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
        # Base64 encodes the same bytes differently at each of three offsets. The first and last
        # digits depend on the neighbouring bytes, so they are not part of the form.
        digits = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
        whole = digits[offset + 1 if offset else 0 : -1 if (offset + len(data)) % 3 else None]
        forms |= {whole, whole.translate(str.maketrans("+/", "-_"))}
    return forms
