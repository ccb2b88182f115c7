"""Canonical source: what it forgets, what it keeps, and that compilers see the same program."""

from __future__ import annotations

import random
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import canonical
from kernelcast.canonical import Token, canonical_source, kernel_id, tokens
from kernelcast.errors import SetupError

BUNDLED = Path(canonical.__file__).parent / "problems" / "bundled"

RAW_STRINGS_AND_SPLICES = r"""
// a comment that goes on \
int not_declared = 1;
/* one */ #define JOIN(a, b) a##b /* two
lines */
#  define OBJECT (40) + 2 // tail
#define LONG(x) \
    ((x) + \
     1)
#include <cstdint>//twice
int JOIN(na, me) = OBJECT;
const char* raw = R"x(// not a comment \
  )" R"(  /* nor this */ )x";
const char *text = "a \"quoted\" // slash" " /* kept */ \
joined", quote = '"' == '\'' ? u8"é"[0] : '\\';
const char* spliced = R\
"(verbatim \
splice)";
int with_comment_start = 7 /**// 2; // 3
int live = 1; // ends in a backslash that is none \\

int after = LO\
NG(2);
#if 0
don't lex /* this as a comment
#else
int chosen = 4'2;
#endif
"""

TEMPLATES_AND_OPERATORS = r"""
template <class T> struct Box { T value; static const int size = sizeof(T); };
template <int N> struct Size { enum { n = N }; };
namespace outer { struct Inner { int x; }; Inner made; }
typedef Box<Box<Box<int>>> Nested;
typedef Box< Box< Box<int> > > Spaced;
typedef Box<::outer::Inner> Digraph;
Nested nested; Spaced spaced; Digraph digraph;
int shift(int a, int b) { return a >> b >> 1 << (a >>= b, 2); }
int signs(int a, int b) { return a+++b - -a - --b + +b & ~a | !b ^ a-- - -1; }
int arrow(outer::Inner* p, int outer::Inner::*m) { return p->x+p->*m+(*p).*m+ (*p).x / *&p->x; }
long double numbers() { return 0x1.8p-3 + 1'000'000 + 1e+5f + .5L + 0b1011u + 1.e-2 + 07ull; }
int digraphs(int a<::>, int i) <% return a<:i:>; %>
struct Point { int x, y; };
Point designated = {.x = 1, .y = 2};
int operator""_twice(unsigned long long v) { return 2 * v; }
int udl = 21_twice;
auto lambda = [](auto... values) -> int { for (int i = 0; ; ++i) { if (i > 3) return i; } };
"""

PRAGMAS_AND_ASSEMBLY = r"""
#include <cstdint>
#pragma   GCC   optimize ("O2")   // keep me
#define UNROLLED _Pragma("GCC unroll 4")
extern "C" __attribute__((noinline))
void kernel(const float* __restrict x, float* __restrict y, int64_t n) {
    #pragma GCC ivdep /* about the loop */
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 0.f ? x[i] : -x[i] * 1e-2f;
    UNROLLED
    for (int64_t i = 0; i < n; i += 2) { y[i] -= 1; }
    asm volatile("nop # not a comment\n\t" /* but this is */ "nop" ::: "memory");
L1: switch (n) { case 1: case 2: y[0] = 3; break; default: if (n < 0) goto L1; else y[1] = 4; }
}
"""

CUDA = r"""
__global__ void __launch_bounds__(256, 2) scale(float *x, const float a, int n) {
  extern __shared__ float tile[];
  const int i = blockIdx.x*blockDim.x + threadIdx.x;
#pragma unroll 4
  for (int k = 0; k < 4; ++k) { tile[threadIdx.x] += __shfl_down_sync(0xffffffff, x[i], k); }
  if (i < n) x[i] = a * tile[threadIdx.x >> 1] - 1.5e-3f;
  asm volatile("bar.sync 0;");
}
void launch(float* x, int n) { scale<<<dim3((n+255)/256), 256, 1024>>>(x, 2.0f, n); }
"""

TRITON = '''
"""Module text."""
import triton
import triton.language as tl

@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # verified 10x faster
    """Adds."""
    offsets = (tl.program_id(0) * BLOCK   # programme
               + tl.arange(0, BLOCK))
    mask = offsets < n; "not a docstring, and of no use"
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def nothing():
    """Only words."""
'''

SEEDS = {path.parent.name: path.read_text() for path in sorted(BUNDLED.glob("*/seed.cpp"))}
C_SOURCES = [RAW_STRINGS_AND_SPLICES, TEMPLATES_AND_OPERATORS, PRAGMAS_AND_ASSEMBLY, CUDA]
C_SOURCES += SEEDS.values()


def rendered_template(folder: Path) -> str:
    parameters = tomllib.loads((folder / "template.toml").read_text())["parameters"]
    defines = "".join(f"#define {name} {values[0]}\n" for name, values in parameters.items())
    return defines + (folder / "template.cpp").read_text()


def assembly(source: str) -> str:
    command = ["g++", "-std=c++17", "-O1", "-fopenmp", "-w", "-S", "-x", "c++", "-o", "-", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Inline assembly is preceded by the number of its line.
    names_the_source = r'^(\s*\.(ident|file)\b|# \d+ "<stdin>").*\n'
    return re.sub(names_the_source, "", done.stdout, flags=re.MULTILINE)


COMPILED = {
    "raw_strings_and_splices": RAW_STRINGS_AND_SPLICES,
    "templates_and_operators": TEMPLATES_AND_OPERATORS,
    "pragmas_and_assembly": PRAGMAS_AND_ASSEMBLY,
    **{f"{name}/seed": source for name, source in SEEDS.items()},
    **{
        f"{path.parent.name}/template": rendered_template(path.parent)
        for path in sorted(BUNDLED.glob("*/template.cpp"))
    },
}


@pytest.mark.parametrize("source", COMPILED.values(), ids=COMPILED)
def test_canonical_source_compiles_to_the_same_assembly(source: str) -> None:
    printed = canonical_source(source, "cpp")
    assert printed != source
    assert assembly(printed) == assembly(source)


# Pieces that, put side by side, try every way to be read as something else.
TRICKY = st.sampled_from(
    [
        *("a", "é", "R", "u8", "L", "if", "return", "1", ".5", "1e", "0x1p", "1'0", "\\u00e9"),
        *("<", ">", ">>", ">=", "=", "==", "::", ":", "+", "++", "-", "->", "*", "&", "%", "!"),
        *("(", ")", "[", "]", "{", "}", ";", ",", ".", "...", "?", "#", "##", "%:", "%:%:"),
        *('"', "'", "\\", "//", "/*", "*/", 'R"x(', 'R"(', ')"', ')x"', '"s"_k', "'\\''"),
        *("#define", "#include", "#include<a//b>", "#include<it's>", "\n", "\\\n", "\\ \n"),
        *(" ", "\t", "\r", "\0", "\u200b", "\u202e", "\ufeff", "\xa0", "\udfff"),
        *('"""', "def f():\n", "    ", "# words\n", "x = \\\n", "pass\n", "'doc'\n"),
    ]
)
ANY_TEXT = st.text(max_size=40) | st.lists(TRICKY, max_size=16).map("".join)
LANGUAGES = st.sampled_from(["cpp", "cuda", "hip", "opencl", "python", "triton"])


@settings(max_examples=250, deadline=None)
@given(ANY_TEXT, LANGUAGES)
def test_any_text_has_a_stable_canonical_source_with_the_same_tokens(
    source: str, language: str
) -> None:
    printed = canonical_source(source, language)
    assert canonical_source(printed, language) == printed
    assert tokens(printed, language) == tokens(source, language)
    assert re.fullmatch("[0-9a-f]{32}", kernel_id(source, language))


NARROW_ESCAPES = [
    *("a; # b", "{ # b }", "} # b", "a; %: b", "## b", "# # b", "%: # b", "%: %: b"),
    *("a \\\\\n\n#define b", "'open \\\\\n\nb", "a \\", "1 . x", "1 ++", "1e + 5", ". . .", ". .5"),
    *("+ +", "- ->", "- >", "& &a", "/ *a", "/ /a", "< ::", "< :a", "% :a", "L 'a'", 'R "(a)"'),
    *('"a" b', "\\ u00e9", 'u8 R"(a)" # b', "'open\n}", "#define a 'open\n}", "#if 0\ndon't ; }"),
    *("#include <a/*b>\nint c; /* */ int d;", 'R"(unclosed', '#define a R"(\n)" b\nc', "a /* b"),
]


@pytest.mark.parametrize("source", [*NARROW_ESCAPES, *C_SOURCES])
def test_tokens_survive_printing(source: str) -> None:
    printed = canonical_source(source, "cuda")
    assert canonical_source(printed, "cuda") == printed
    assert tokens(printed, "cuda") == tokens(source, "cuda")


NOISE = st.sampled_from(
    [
        *(" ", "\t", "\n", "\r\n", "  \n\n ", "\f", "\\\n", "\u200b", "\u202e", "/**/", "/* // */"),
        *("/* faster, verified */", '/* " */', "// 10x\n", "// don't\\\nstop\n", "/*\n#if 0\n*/"),
    ]
)


def spread(lexed: list[Token], noise: Callable[[], str]) -> str:
    """Source with the given tokens, and noise wherever white space may stand."""
    parts = []
    for kind, text in lexed:
        # A literal that does not end, as in a skipped block, ends with its line.
        is_open = text.startswith("'") and not text.endswith("'")
        parts.append(f"\n{text}\n" if kind == "directive" or is_open else f" {text} ")
        parts.append(noise())
    return "".join(parts)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(C_SOURCES), st.lists(NOISE, min_size=1, max_size=5), st.integers())
def test_comments_and_layout_between_tokens_do_not_change_the_id(
    source: str, noise: list[str], seed: int
) -> None:
    choose = random.Random(seed)
    noisy = spread(
        list(tokens(source, "cpp")),
        lambda: "".join(choose.choices(noise, k=choose.randrange(3))),
    )
    assert kernel_id(noisy, "cpp") == kernel_id(source, "cpp")


OTHER_OPERATOR = {"+": "-", "*": "+", "<": "<=", "=": "+=", "+=": "-=", "/": "*", "-": "+"}


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(C_SOURCES), st.integers())
def test_another_number_name_or_operator_is_another_kernel(source: str, seed: int) -> None:
    lexed = list(tokens(source, "cpp"))
    changeable = [
        index
        for index, (kind, text) in enumerate(lexed)
        if kind in {"number", "identifier"} or text in OTHER_OPERATOR
    ]
    index = random.Random(seed).choice(changeable)
    kind, text = lexed[index]
    lexed[index] = Token(kind, OTHER_OPERATOR.get(text, f"{text}7"))
    assert kernel_id(spread(lexed, str), "cpp") != kernel_id(source, "cpp")


def test_each_kind_of_token() -> None:
    source = "#  define  F( x )  x /* c */ + 1\nauto s = u8\"a\\\"b\"_k + L'\\'' - 0x1.p+3f; // end"
    assert tokens(source, "cpp") == (
        Token("directive", "#define F( x ) x + 1"),
        Token("identifier", "auto"),
        Token("identifier", "s"),
        Token("punctuator", "="),
        Token("string", 'u8"a\\"b"_k'),
        Token("punctuator", "+"),
        Token("character", "L'\\''"),
        Token("punctuator", "-"),
        Token("number", "0x1.p+3f"),
        Token("punctuator", ";"),
    )


def test_a_header_name_holds_no_comment() -> None:
    assert tokens("# include/**/<a/*b>//c\nd /* */", "cpp") == (
        Token("directive", "#include <a/*b>"),
        Token("identifier", "d"),
    )


def test_a_byte_order_mark_is_not_part_of_the_kernel() -> None:
    for language in ("cpp", "triton"):
        assert kernel_id("\ufeffx = 1", language) == kernel_id("x = 1", language)


def test_layout_of_printed_source() -> None:
    source = """
#include<cmath>
void f(float*x,int n){for(int i=0;i<n;++i){if(!x[i])x[i]=-g(x,i)->y.z;}  // loop
int a[]={1,2};}"""
    assert (
        canonical_source(source, "cpp")
        == """\
#include <cmath>
void f(float * x, int n) {
  for (int i = 0; i < n; ++i) {
    if (!x[i]) x[i] = -g(x, i)->y.z;
  }
  int a[] = {
    1, 2
  };
}
"""
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("#define F(x) 1", "#define F (x) 1"),
        ("#define F/**/(x) 1", "#define F(x) 1"),
        ("#pragma unroll 4\nfor(;;);", "#pragma unroll 8\nfor(;;);"),
        ("#pragma unroll\nfor(;;);", "for(;;);"),
        ("void __launch_bounds__(256) f();", "void f();"),
        ('asm("nop");', 'asm("nop ");'),
        ('s = R"( // a)";', 's = R"( // b)";'),
        ('s = R"(a\\\nb)";', 's = R"(ab)";'),
        ("a = b / *c;", "a = b;"),
        ("a+++b", "a+ ++b"),
        ("x >> y", "x > > y"),
        ("int a; /* never closed", "int a;"),
        ("int a; // \\\\\n\nint b;", "int a;"),
        ("int a; // c\rint b;", "int a;"),
        ("ab = 1;", "a\u200bb = 1;"),
        ("#include <a//b>", "#include <a>"),
    ],
)
def test_what_looks_like_layout_but_is_not(one: str, other: str) -> None:
    assert kernel_id(one, "cpp") != kernel_id(other, "cpp")


def test_the_same_text_in_another_language_is_another_kernel() -> None:
    assert kernel_id("int a;", "cuda") != kernel_id("int a;", "hip")


def test_text_for_a_reader_does_not_survive() -> None:
    words = "verified"
    source = f"// {words}\n#define N 4 // {words}\n/* {words} */int a; // \\\n{words}\nint b;"
    assert words not in canonical_source(source, "cpp")
    assert words not in canonical_source(TRITON, "triton")
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in words)
    assert kernel_id(f"int a{hidden};", "cpp") == kernel_id("int a;", "cpp")


def test_python_keeps_the_program_and_drops_words_and_layout() -> None:
    assert (
        canonical_source(TRITON, "triton")
        == """\
import triton
import triton.language as tl

@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)

def nothing():
    pass
"""
    )
    assert kernel_id(TRITON.replace("< n", "<= n"), "triton") != kernel_id(TRITON, "triton")
    assert tokens("x = f(1.5e-3, 'a') ** y  # c", "python") == (
        Token("identifier", "x"),
        Token("punctuator", "="),
        Token("identifier", "f"),
        Token("punctuator", "("),
        Token("number", "0.0015"),
        Token("punctuator", ","),
        Token("string", "'a'"),
        Token("punctuator", ")"),
        Token("punctuator", "**"),
        Token("identifier", "y"),
    )


@pytest.mark.parametrize(
    "source", ["def f(:  # words\n  x", "(" * 5000, "x\0 # words", "if x:\n'a"]
)
def test_python_that_does_not_parse_is_still_a_kernel(source: str) -> None:
    assert "words" not in canonical_source(source, "triton")
    assert kernel_id(source, "triton") != kernel_id("x", "triton")


def test_a_doubtful_escape_is_not_a_parse_error() -> None:
    assert canonical_source("x = '\\d' # words", "python") == "x = '\\\\d'\n"


def test_python_blocks_of_nothing_but_words_stay_blocks() -> None:
    source = "try:\n  'a'\nfinally:\n  'b'\nclass A:\n  'c'\n  def f(self): 'd'; return 1"
    printed = (
        "try:\n    pass\nfinally:\n    pass\n\nclass A:\n\n    def f(self):\n        return 1\n"
    )
    assert canonical_source(source, "python") == printed


def test_a_language_without_a_lexer_is_a_broken_set_up() -> None:
    with pytest.raises(SetupError, match="use one of cpp, cuda"):
        kernel_id("x", "fortran")


@pytest.mark.parametrize("language", ["cpp", "triton"])
@pytest.mark.parametrize(
    "unit", ["/*", "//*", '"', 'R"(', "{", "\\\n", "\n/**/", "#include ", ".", ">", "'\\", "1'"]
)
def test_hostile_repetition_takes_linear_time_and_space(unit: str, language: str) -> None:
    # Quadratic time at this length would be minutes, which the test run would not survive.
    assert len(canonical_source(unit * 20_000, language)) < 60 * 20_000
