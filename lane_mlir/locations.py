"""
Where an op comes from: stamped while parsing, found again when something is wrong with it.

xDSL's parser leaves ops without a location, and its verifier prints the whole module. Here every parsed op has its
file:line:column, and both kinds of error are one line: `step.mlir:3:5: error: 'tg.matmul' op …`.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute, Operation, TypeAttribute
from xdsl.parser import Parser, ParserState
from xdsl.utils.exceptions import ParseError, PassFailedException, VerifyException
from xdsl.utils.lexer import Input, Span, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind

from lane_mlir.diagnostics import LaneError, SourceError, one_line, reason
from lane_mlir.dominance import undominated_use

EXCERPT_WIDTH = 120
"""Characters of a source line shown under an error at most."""


class OpFailedException(PassFailedException):
    """A pass failed because of one op. The tool prints where the op comes from."""

    def __init__(self, op: Operation, cause: str) -> None:
        super().__init__(cause)
        self.op = op


class QuickLexer(MLIRLexer):
    """
    xDSL's lexer, which takes a third of the time of parsing, with its commonest tokens found by one regular expression.

    A string that does not end is refused in linear time; xDSL's own expression for strings needs exponential time.
    """

    _unescaped_characters_regex = re.compile(r'"[^"\\\n\v\f]*(?:\\(?:["nt\\]|[0-9A-Fa-f]{2})[^"\\\n\v\f]*)*"')

    _common = re.compile(
        r"""(?:\s|//[^\n]*)*+(?:
        (?P<PERCENT_IDENT>%(?:[0-9]+|[a-zA-Z$._-][a-zA-Z0-9$._-]*))
        |(?P<BARE_IDENT>[a-zA-Z_][a-zA-Z0-9_$.]*)
        |(?P<COMMA>,)|(?P<COLON>:)|(?P<L_PAREN>\()|(?P<R_PAREN>\))|(?P<LESS><)|(?P<GREATER>>)
        |(?P<L_SQUARE>\[)|(?P<R_SQUARE>\])|(?P<R_BRACE>\})|(?P<EQUAL>=)|(?P<ARROW>->)
        )""",
        re.ASCII | re.VERBOSE,
    )

    def lex(self) -> MLIRToken:
        match = self._common.match(self.input.content, self.pos)
        if match is None or match.lastgroup is None:
            return super().lex()
        self.pos = match.end()
        return Token(_KINDS[match.lastgroup], Span(match.start(match.lastgroup), self.pos, self.input))


_SHAPED_TYPE = re.compile(r'(?:tensor|memref)<[^<>"/]*(?:<[^<>"/]*>[^<>"/]*)*>')
_KINDS = {kind.name: kind for kind in MLIRTokenKind}


class LocatedParser(Parser):
    """
    A parser that gives every op without a `loc(…)` the place where it starts in the text.

    `positions` has the place of every op, also of those that carry a name as their location. Whatever goes wrong is a
    `ParseError` at a place, errors in building an attribute or an op included. `line_offset` is the number of lines
    before the text in its file.
    """

    def __init__(self, ctx: Context, text: str, name: str = "<stdin>", line_offset: int = 0) -> None:
        self.positions: dict[Operation, FileLineColLoc] = {}
        self._file = StringAttr(name)
        self._line_offset = line_offset
        self._types: dict[str, TypeAttribute] = {}
        self._line_starts = [0, *(m.end() for m in re.finditer("\n", text))]
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(QuickLexer(Input(text, name)))

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        start = self.pos
        try:
            return super().parse_module(allow_implicit_module)
        except ParseError as error:
            raise self._explained(error) from error
        except Exception as error:
            self._raise_cause(error, start)

    def parse_operation(self) -> Operation:
        start = self.pos
        try:
            op = super().parse_operation()
        except ParseError:
            raise
        except Exception as error:
            self._raise_cause(error, start)
        position = self._position(start)
        self.positions[op] = position
        if isinstance(op.location, UnknownLoc):
            op.location = position
        return op

    def parse_optional_type(self) -> TypeAttribute | None:
        """Parse a shaped type, half of the text of a step, once for each way it is written: types are immutable."""
        written = _SHAPED_TYPE.match(self.lexer.input.content, self.pos)
        if written is None:
            return super().parse_optional_type()
        if (known := self._types.get(written[0])) is not None:
            self._resume_from(written.end())
            return known
        parsed = super().parse_optional_type()
        # The expression does not know arrows inside of affine maps: what it found may be less than the type.
        if parsed is not None and not self.lexer.input.content[written.end() : self.pos].strip():
            self._types[written[0]] = parsed
        return parsed

    def _position(self, start: int) -> FileLineColLoc:
        line = bisect_right(self._line_starts, start)
        column = start - self._line_starts[line - 1] + 1
        return FileLineColLoc(self._file, IntAttr(line + self._line_offset), IntAttr(column))

    def _raise_cause(self, error: Exception, start: int) -> NoReturn:
        """Attributes and ops refuse their own construction by other exceptions than the parser's: give them a place."""
        span = Span(start, start + 1, self.lexer.input, self._line_offset)
        if isinstance(error, VerifyException):
            raise ParseError(span, str(error)) from error
        if isinstance(error, RecursionError):
            raise ParseError(span, "nested too deeply") from error
        if (digits := sys.get_int_max_str_digits()) and "Exceeds the limit" in str(error):
            long = re.compile(rf"[0-9]{{{digits + 1},}}").search(self.lexer.input.content, start)
            span = span if long is None else Span(*long.span(), self.lexer.input, self._line_offset)
            raise ParseError(span, f"an integer of more than {digits} digits") from error
        raise ParseError(span, f"cannot be read ({type(error).__name__}: {error})") from error

    def _explained(self, error: ParseError) -> ParseError:
        """The error with a message that names what was found, and the place of a use without a definition."""
        span, text = error.span, self.lexer.input.content
        message = error.msg
        found = "the end of the file" if span.start >= len(text) else repr(text[span.start : span.end])
        if message == "Could not parse entire input!":
            message = f"expected an operation, found {found}"
        elif message == " in block definition":
            message = f"expected an operation or '}}', found {found}"
        elif undefined := re.match(r"values used but not defined: \[(%[^,\]]+)", message):
            # Other functions may define the name for themselves: the use is its first mention in the op.
            mention = re.compile(rf"//[^\n]*|({re.escape(undefined[1])})(?![\w$.-])")
            begin = self._first_use(undefined[1].removeprefix("%"))
            start = next((m.start() for m in mention.finditer(text, begin) if m[1]), span.start)
            span = Span(start, start + len(undefined[1]), self.lexer.input)
        elif unregistered := re.fullmatch(r"Operation (\S+) is not registered", message):
            # The parser has gone past the name when it looks it up.
            name = unregistered[1]
            start = text.rfind(name, 0, span.start)
            span = Span(start, start + len(name), self.lexer.input) if start >= 0 else span
            known = [op.name for op in self.ctx.loaded_ops]
            if close := difflib.get_close_matches(name, known, n=1, cutoff=0.75):
                message = f"{message}; did you mean '{close[0]}'?"
        return ParseError(Span(span.start, span.end, span.input, self._line_offset), message)  # pyright: ignore[reportArgumentType]

    def _first_use(self, name: str) -> int:
        """Where the first op that uses a value without a definition starts in the text."""
        values = self.forward_ssa_references.get(name, {}).values()
        places = [
            self.positions[use.operation] for value in values for use in value.uses if use.operation in self.positions
        ]
        starts = [self._line_starts[p.line.data - self._line_offset - 1] + p.column.data - 1 for p in places]
        return min(starts, default=0)


def source_error(error: ParseError) -> SourceError:
    """The parse error as file:line:column, its cause, and the line with a mark under the place."""
    span = error.span
    content = span.input.content
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    begin = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", begin)
    line = text[begin : end if end >= 0 else len(text)].rstrip("\r").replace("\t", " ")
    return SourceError(
        str(span.get_location()),
        error.msg,
        _excerpt(line, span.start - begin, span.end - begin),
    )


def _excerpt(line: str, start: int, end: int) -> str:
    """The source line, cut to a window around columns start to end, with carets under them."""
    first = max(0, start - EXCERPT_WIDTH // 2) if len(line) > EXCERPT_WIDTH else 0
    shown = "".join(c if c.isprintable() else "?" for c in line[first : first + EXCERPT_WIDTH])
    if not shown.strip():
        return ""
    carets = max(1, min(end, len(line), first + EXCERPT_WIDTH) - start)
    return f"{shown}\n{' ' * (start - first)}{'^' * carets}"


def place_of(op: Operation, positions: Mapping[Operation, FileLineColLoc] | None = None) -> str | None:
    """
    Where the op, or the nearest op around it, comes from: `step.mlir:3:5`, or the names that its location gives, such
    as `blk.3.ffn_up.weight`. None if nothing is known. `positions` (of a `LocatedParser`) goes before the location.
    """
    at: Operation | None = op
    while at is not None:
        place = (positions or {}).get(at, at.location)
        if words := ", ".join(dict.fromkeys(_places(place))):
            return words
        at = at.parent_op()
    return None


def _places(location: Attribute) -> Iterable[str]:
    match location:
        case FileLineColLoc():
            yield f"{location.filename.data}:{location.line.data}:{location.column.data}"
        case NameLoc():
            yield location.desc.data
        case FusedLoc(locations=ArrayAttr(data=parts)):
            for part in parts:
                yield from _places(part)
        case _:
            return


def innermost_invalid(root: Operation) -> Operation:
    """The op under `root` (itself included) that does not verify while everything inside it does."""
    for region in root.regions:
        for block in region.blocks:
            for op in block.ops:
                try:
                    op.verify()
                except VerifyException:
                    return innermost_invalid(op)
    return root


def _redefinition(table: Operation, cause: str) -> Operation:
    """If a table of symbols has one name twice, the op that is the second; otherwise the op itself."""
    found = re.search(r'Redefinition of symbol "([^"]*)"', cause)
    if found is None:
        return table
    of_name = [op for op in table.regions[0].block.ops if op.get_attr_or_prop("sym_name") == StringAttr(found[1])]
    return of_name[1]


def verify(
    module: ModuleOp,
    positions: Mapping[Operation, FileLineColLoc] | None = None,
    name: str = "<module>",
    when: str = "",
) -> None:
    """
    Verify the module; `name` stands for its place if no op knows better, `when` is said after the cause.

    Raises: SourceError at the op that does not verify.
    """
    try:
        module.verify()
    except VerifyException as error:
        op = _redefinition(innermost_invalid(module), str(error))
        raise SourceError(place_of(op, positions) or name, f"{op_cause(op, str(error))}{when}") from error
    if (found := undominated_use(module)) is not None:
        op, cause = found
        raise SourceError(place_of(op, positions) or name, f"{op_cause(op, cause)}{when}")


def op_cause(op: Operation, cause: str) -> str:
    """The cause, with the name of the op before it if it is not in it."""
    cause = one_line(cause).removeprefix("Operation does not verify: ")
    return cause if op.name in cause else f"'{op.name}' op {cause}"


def decode(data: bytes, name: str) -> str:
    """
    The bytes of a text file as text.

    Raises: SourceError at the first byte that is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        byte = data[error.start]
        raise SourceError(
            f"{name}:{line}:{column}",
            f"not a text file: byte 0x{byte:02x} is not UTF-8",
        ) from error


def read_module(ctx: Context, path: str | os.PathLike[str]) -> ModuleOp:
    """
    Parse and verify a file of IR, or of the standard input, whose path is "-".

    Raises: LaneError if the file cannot be read; SourceError at the place where it does not parse or verify.
    """
    name = "<stdin>" if path == "-" else os.fspath(path)
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise LaneError(f"cannot read {name}: {reason(error)}") from error
    parser = LocatedParser(ctx, decode(data, name), name)
    try:
        module = parser.parse_module()
    except ParseError as error:
        raise source_error(error) from error
    verify(module, parser.positions, name)
    return module
