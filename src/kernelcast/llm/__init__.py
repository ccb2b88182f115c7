"""The one client for OpenAI-compatible endpoints, and the texts that describe facts to a model.

Only this package imports the SDK, so that every token any part spends is counted in one place,
every key is read in one place, and every provider is a base URL. A fault of an endpoint is a value:
a `Reply` with its outcome. `ModelError` means that the set-up is wrong.
"""

from __future__ import annotations

from kernelcast.llm._endpoint import Endpoint, Request
from kernelcast.llm._prices import Price
from kernelcast.llm._replies import (
    Answer,
    Message,
    Outcome,
    Reply,
    Schema,
    TokenLogprob,
    find_object,
)
from kernelcast.llm._words import (
    device_text,
    evidence_text,
    history_text,
    problem_text,
    quoted_text,
    rehearsal_text,
)
from kernelcast.llm.client import Client

__all__ = [
    "Answer",
    "Client",
    "Endpoint",
    "Message",
    "Outcome",
    "Price",
    "Reply",
    "Request",
    "Schema",
    "TokenLogprob",
    "device_text",
    "evidence_text",
    "find_object",
    "history_text",
    "problem_text",
    "quoted_text",
    "rehearsal_text",
]
