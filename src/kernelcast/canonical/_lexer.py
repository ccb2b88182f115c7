r"""Text to tokens and back.

The C family is cut by one regular expression and printed so that lexing the result gives the same
tokens back; Python is only cut here, since its own syntax tree prints it. Nothing here raises for a
malformed kernel, which is a value like any other: every text has tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, cast

TokenKind = Literal["identifier", "number", "string", "character", "punctuator", "directive"]


class Token(NamedTuple):
    """One lexical unit; a preprocessor directive is a single token."""

    kind: TokenKind
    text: str


# Characters that are not seen: zero width, direction overrides, tags, variation selectors. They
# make source read differently from what it compiles to, and can carry text only a model sees.
_INVISIBLE = (
    "\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e01ef"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def readable(source: str) -> str:
    """The source with one kind of line end and nothing that cannot be written to a file."""
    if not source.isascii():
        source = _SURROGATE.sub("\ufffd", source)
    return source.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


# ---- C family: lexing ----------------------------------------------------------------------------
# The patterns are written so that no text makes them backtrack more than once over it.

# A lone surrogate cannot be in readable source, so it can stand for a raw string's place in it.
_HIDDEN = "\udfff"
# Every character beyond ASCII that is neither space nor invisible may be part of a name: a compiler
# that accepts fewer rejects the kernel, however it is cut.
_NOT_NAME = (
    r"\x00-\x23\x25-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f\x85\xa0\u1680\u2000-\u200a\u2028\u2029"
    rf"\u202f\u205f\u3000{_INVISIBLE}{_HIDDEN}"
)
_NAME_PART = f"[^{_NOT_NAME}]"
_UCN = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
_NAME = f"(?:[^{_NOT_NAME}0-9]|{_UCN}){_NAME_PART}*(?:(?:{_UCN}){_NAME_PART}*)*"
_NUMBER = rf"\.?[0-9](?:[eEpP][+-]|'{_NAME_PART}|{_NAME_PART}|\.)*"
_BLOCK_COMMENT = r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"
_COMMENT = rf"//[^\n]*|{_BLOCK_COMMENT}"
_OPEN_COMMENT = r"/\*(?s:.*)"
_PREFIX = "(?:u8|[uUL])?"
_CLOSED_STRING = rf'{_PREFIX}"[^"\\\n]*(?:\\.[^"\\\n]*)*"(?:{_NAME})?'
_CLOSED_CHARACTER = rf"{_PREFIX}'[^'\\\n]*(?:\\.[^'\\\n]*)*'(?:{_NAME})?"
# A literal that does not end takes the rest of its line, as compilers have it in skipped blocks.
_STRING = rf'{_CLOSED_STRING}|{_PREFIX}"[^\n]*'
_CHARACTER = rf"{_CLOSED_CHARACTER}|{_PREFIX}'[^\n]*"
_RAW_STRING = f"{_HIDDEN}[0-9]+{_HIDDEN}(?:{_NAME})?"
_LINE_START = rf"\n(?:[\s{_INVISIBLE}]+|{_COMMENT})*"
# `<a//b>` holds no comment, so a header name is taken before comments are looked for.
_GAP = rf"(?:[^\S\n]|[{_INVISIBLE}]|{_BLOCK_COMMENT})*"
_HEADER = rf"(?:#|%:){_GAP}(?:include_next|include|import){_GAP}<[^>\n]*>"
_DIRECTIVE = (
    rf"(?:{_HEADER}|#(?!\#)|%:(?!%:))"
    rf"(?:{_RAW_STRING}|{_COMMENT}|{_OPEN_COMMENT}|{_STRING}|{_CHARACTER}|{_NAME}|{_NUMBER}|[^\n])*"
)
# A run of `>` is one token, with the `=` behind it: cut or joined it could change from a shift to
# the end of nested template arguments. `<::` is `<` and `::` but for `<:::` and `<::>`. The last
# alternative is any character at all, so that every text has tokens.
_PUNCTUATOR = (
    r">+=?|<=>|<<<|<<=|<=|<<|<:(?!:(?![:>]))|<%|->\*|->|--|-=|\+\+|\+=|\*=|/=|%:%:|%:|%>|%=|&&|&=|"
    rf"\|\||\|=|\^\^|\^=|==|!=|::|:>|\#\#|\.\.\.|\.\*|[^\s{_INVISIBLE}]"
)
# The most frequent come first; only a name and a literal's prefix, and a number or comment and a
# punctuator, could be taken for one another.
_PIECES = {
    "identifier": rf"(?!{_PREFIX}[\"']){_NAME}",
    "mark": r"[()\[\]{};,]",
    "line": rf"{_LINE_START}(?:{_DIRECTIVE})?",
    "number": _NUMBER,
    "comment": _COMMENT,
    "open_comment": _OPEN_COMMENT,
    "string": _STRING,
    "character": _CHARACTER,
    "raw_string": _RAW_STRING,
    "punctuator": _PUNCTUATOR,
}
_SCAN = re.compile("|".join(_PIECES.values()))
_CLASSIFY = re.compile("|".join(f"(?P<{kind}>{piece})" for kind, piece in _PIECES.items()))
_KINDS = {"mark": "punctuator", "line": "directive", "raw_string": "string"}
_KINDS |= {"open_comment": "punctuator"}
_BEFORE_DIRECTIVE = re.compile(_LINE_START)
_HEADER_PARTS = re.compile(rf"(?:#|%:){_GAP}(include_next|include|import){_GAP}(<[^>\n]*>)")
_IN_DIRECTIVE = re.compile(
    rf"(?P<gap>(?:[^\S\n]|[{_INVISIBLE}]|{_COMMENT})+)|(?P<open_comment>{_OPEN_COMMENT})"
    rf"|(?P<raw_string>{_RAW_STRING})|(?P<literal>{_STRING}|{_CHARACTER})|{_NAME}|{_NUMBER}|[^\n]"
)
_SPLICE = re.compile(r"\\[ \t\f\v]*\n")
_BEFORE_RAW_STRING = re.compile(
    rf'(?P<raw>{_PREFIX}R")|{_LINE_START}(?:{_HEADER})?|{_COMMENT}|{_OPEN_COMMENT}'
    rf"|{_STRING}|{_CHARACTER}|{_NAME}|{_NUMBER}"
)
_RAW_OPENING = re.compile(r'"([^ ()\\\t\v\f\n]{0,16})\(')
CLOSED_LITERAL = re.compile(rf'{_PREFIX}R"|(?:{_CLOSED_STRING}|{_CLOSED_CHARACTER})\Z')


# The pieces of a printed directive.
IN_DIRECTIVE = re.compile(
    rf"(?P<literal>{_PREFIX}R\"(?s:.*)|{_STRING}|{_CHARACTER})|(?P<name>{_NAME})"
    rf"|(?P<number>{_NUMBER})|\s+|."
)
# Stands for an expression in an f-string that holds C++, with its number behind it.
STANDS_IN = "\ue000"


def lex_c(source: str) -> tuple[Token, ...]:
    """The tokens of C, C++, CUDA, HIP or OpenCL; every text has some."""
    # The line ends make "first on its line" and "last on its line" true at both ends of the file.
    text = f"\n{readable(source)}\n".replace("\0", " ")
    text, raw_strings = _join_lines(text)
    token_of = _PieceTokens(raw_strings) if raw_strings else _plain_pieces
    if len(token_of) > _MOST_PIECES:
        token_of.clear()
    return tuple([token for piece in _SCAN.findall(text) if (token := token_of[piece])])


def _join_lines(text: str) -> tuple[str, list[str]]:
    """Remove line splices; put a mark in place of each raw string, where they must stay."""
    splices = list(_SPLICE.finditer(text)) if "\\" in text else []
    joined = _SPLICE.sub("", text) if splices else text
    if 'R"' not in joined:
        return joined, []

    removed = [0, *accumulate(splice.end() - splice.start() for splice in splices)]
    starts = [splice.start() for splice in splices]
    joined_starts = [start - before for start, before in zip(starts, removed, strict=False)]
    parts: list[str] = []
    raw_strings: list[str] = []
    copied = position = 0
    while match := _BEFORE_RAW_STRING.search(joined, position):
        position = match.end()
        if not match["raw"]:
            continue
        quote = position - 1 + removed[bisect_right(joined_starts, position - 1)]
        opening = _RAW_OPENING.match(text, quote)
        if not opening:
            # The prefix becomes a name, and the quote starts an ordinary string.
            position -= 1
            continue
        closing = f'){opening[1]}"'
        end = text.find(closing, opening.end())
        parts += joined[copied : match.start()], f"{_HIDDEN}{len(raw_strings)}{_HIDDEN}"
        if end < 0:
            # It takes the rest of the file, none of which can compile.
            raw_strings.append(match["raw"][:-1] + opening[0])
            return "".join(parts), raw_strings
        end += len(closing)
        raw_strings.append(match["raw"][:-1] + text[quote:end])
        copied = position = end - removed[bisect_left(starts, end)]
    return "".join([*parts, joined[copied:]]), raw_strings


class _PieceTokens(dict[str, Token | None]):
    """The token of each piece of text that the scan cuts, made once per distinct piece.

    Without raw strings, a token depends on its piece alone.
    """

    def __init__(self, raw_strings: list[str]) -> None:
        super().__init__()
        self._raw_strings = raw_strings

    def __missing__(self, piece: str) -> Token | None:
        match = _CLASSIFY.match(piece)
        assert match
        group = str(match.lastgroup)
        text = piece
        if group == "open_comment":
            text = "/*"
        elif group in ("string", "character"):
            text = piece if CLOSED_LITERAL.match(piece) else piece.rstrip()
        elif group == "raw_string":
            text = self._raw_string(piece)
        elif group == "line":
            start = _BEFORE_DIRECTIVE.match(piece)
            assert start
            text = piece[start.end() :] and self._directive(piece[start.end() :])
        is_token = text and group != "comment"
        token = Token(cast(TokenKind, _KINDS.get(group, group)), text) if is_token else None
        self[piece] = token
        return token

    def _raw_string(self, piece: str) -> str:
        _, index, suffix = piece.split(_HIDDEN)
        return self._raw_strings[int(index)] + suffix

    def _directive(self, text: str) -> str:
        """The directive with one space for each gap: `#define F(x)` is not `#define F (x)`."""

        def clean(match: re.Match[str]) -> str:
            if match.lastgroup == "raw_string":
                return self._raw_string(match[0])
            return {"gap": " ", "open_comment": "/*"}.get(str(match.lastgroup), match[0])

        if header := _HEADER_PARTS.match(text):
            rest = _IN_DIRECTIVE.sub(clean, text[header.end() :])
            return f"#{header[1]} {header[2]}{rest}".rstrip()
        body = _IN_DIRECTIVE.sub(clean, text[1 if text[0] == "#" else 2 :]).strip()
        # `# #` is a directive and `##` is not.
        return f"# {body}" if body.startswith("#") else f"#{body}"


_plain_pieces = _PieceTokens([])  # of all sources without raw strings
_MOST_PIECES = 50_000


# ---- C family: printing --------------------------------------------------------------------------

# Deep nesting must not make the printed source quadratic in the size of the kernel.
_DEEPEST_INDENT = 20
_HASH = frozenset({"#", "%:"})
_SHUTS = frozenset({";", ",", ")", "]"})
_PREFIX_OPERATORS = frozenset({"-", "+", "*", "&", "!", "~", "++", "--"})
_OPERAND_ENDS = frozenset({"identifier", "number", "string", "character", ")", "]"})
_KEYWORDS = frozenset({"return", "if", "for", "while", "switch", "case", "catch", "else", "do"})


@cache
def _space(left: str, right: str) -> str:
    """What goes between two neighbours, each given as its text if a punctuator, else its kind."""
    is_joined = (
        right in _SHUTS
        or left in {"(", "["}
        or (left in {"identifier", ")", "]"} and right in {"(", "[", ".", "->", "::", "++", "--"})
        or (left in {".", "->", "::"} and right == "identifier")
        or (left == "prefix" and right in {"identifier", "number", "("})
    )
    return "" if is_joined else " "


def print_c(lexed: Sequence[tuple[TokenKind, str]]) -> str:
    """Lay the tokens out, one statement to a line, so that lexing the result gives them back.

    Only neighbours that cannot be read as one token are joined, and no line starts with a `#` that
    is not a directive.
    """
    lines: list[str] = []
    line = left = ""
    depth = 0
    open_parentheses = [0]
    for (kind, text), (_, following) in pairwise((*lexed, Token("punctuator", ""))):
        if kind == "directive":
            lines += (line, text)
            line = ""
            continue
        if kind == "punctuator":
            shape = text
            if text == "}":
                depth = max(depth - 1, 0)
                if len(open_parentheses) > 1:
                    open_parentheses.pop()
                if left != "{":
                    lines.append(line)
                    line = ""
        else:
            shape = "keyword" if text in _KEYWORDS else kind

        if line:
            line += _space(left, shape) + text
        else:
            line = "  " * min(depth, _DEEPEST_INDENT) + text
            left = ""

        ends_line = False
        if kind == "punctuator":
            if text == "(":
                open_parentheses[-1] += 1
            elif text == ")":
                open_parentheses[-1] = max(open_parentheses[-1] - 1, 0)
            elif text == "{":
                depth += 1
                open_parentheses.append(0)
                ends_line = following != "}" and following not in _HASH
            elif text == ";":
                ends_line = not open_parentheses[-1] and following not in _HASH
            elif text == "}":
                ends_line = not (open_parentheses[-1] or following in _HASH or following in _SHUTS)
            elif text in _PREFIX_OPERATORS and left not in _OPERAND_ENDS:
                shape = "prefix"
        elif kind in {"string", "character"}:
            ends_line = not CLOSED_LITERAL.match(text)
        left = shape
        if ends_line:
            lines.append(line)
            line = ""
    lines.append(line)
    # A backslash that ends a line without being a splice stays so if a splice follows it.
    return "".join([f"{x}\\\n\n" if x[-1] == "\\" else f"{x}\n" for x in lines if x])


# ---- Python --------------------------------------------------------------------------------------

_PY_PREFIX = "(?:[rR][bBfFtT]?|[bBfFtT][rR]?|[uU])?"
_PY_STRING = "|".join(
    rf"{quote * 3}[^{quote}\\]*(?:(?:\\(?s:.)|{quote}(?!{quote * 2}))[^{quote}\\]*)*"
    rf"(?:{quote * 3}|(?s:.*))"
    rf"|{quote}[^{quote}\\\n]*(?:\\(?s:.)[^{quote}\\\n]*)*(?:{quote}|[^\n]*)"
    for quote in "\"'"
)
_PY_COMMENT = r"(?P<comment>\#[^\n]*)"
PY_UNSEEN = re.compile(rf"{_PY_STRING}|{_PY_COMMENT}|(?P<invisible>[{_INVISIBLE}]+)")
"""Comments and invisible characters, and strings, in which there are none."""
PY_TOKEN = re.compile(
    rf"(?P<string>{_PY_PREFIX}(?:{_PY_STRING}))|{_PY_COMMENT}|(?P<identifier>[^\W\d]\w*)"
    r"|(?P<number>0[xXoObB]\w+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?[jJ]?)"
    rf"|(?P<invisible>[{_INVISIBLE}]+)"
    r"|(?P<punctuator>\*\*=|//=|>>=|<<=|\.\.\.|!=|->|:=|\*\*|//|<<|>>|[-+*/%&|^@=<>]=|\S)"
)


def lex_python(source: str) -> tuple[Token, ...]:
    """The tokens of Python without comments, line ends and indentation."""
    return tuple(
        Token(cast(TokenKind, match.lastgroup), match[0])
        for match in PY_TOKEN.finditer(source)
        if match.lastgroup not in ("comment", "invisible")
    )
