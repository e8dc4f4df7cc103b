"""Owns the rules of a text that installers split on every `;`."""

from __future__ import annotations

from collections.abc import Iterator

from xjobs.ddl.findings import Rule
from xjobs.ddl.lexer import Kind
from xjobs.ddl.positions import shown
from xjobs.ddl.script import Edit, Found, Script

__all__ = ["RULES"]


def _semicolons_in_comments(script: Script) -> Iterator[Found]:
    return _in_comments(script, ";", ",", "a semicolon")


def _apostrophes_in_comments(script: Script) -> Iterator[Found]:
    return _in_comments(script, "'", "", "an apostrophe")


def _in_comments(script: Script, character: str, instead: str, noun: str) -> Iterator[Found]:
    for source in script.ddl:
        for comment in source.tokens:
            if comment.kind is Kind.COMMENT and character in comment.text:
                places = [comment.start + at for at, each in enumerate(comment.text) if each == character]
                edits = tuple(Edit(place, place + 1, instead) for place in places)
                line_end = source.text.find("\n", places[0])
                end = comment.end if line_end < 0 else min(comment.end, line_end)
                yield Found(source, places[0], end, f"{noun} in the comment {shown(comment.text)}", edits)


def _uneven_quotes(script: Script) -> Iterator[Found]:
    for source in script.ddl:
        # Those in comments are another rule's.
        uneven = [token for token in source.tokens if token.is_code and token.text.count("'") % 2]
        if len(uneven) % 2:
            message = "the code has an odd number of apostrophes, the first one without a partner here"
            yield Found(source, uneven[0].start, uneven[0].end, message)


def _dollar_quotes(script: Script) -> Iterator[Found]:
    for placed in script.statements:
        for token in placed.code:
            if token.kind is Kind.DOLLAR:
                yield placed.found("a dollar quote, which a splitter would have to know", token)
                break


def _cut_statements(script: Script) -> Iterator[Found]:
    for placed in script.statements:
        for token in placed.code:
            at = token.text.find(";")
            if at >= 0:
                message = f"splitting on each semicolon cuts this {_noun(token.kind)}"
                yield Found(placed.source, token.start + at, token.end, message)
                break


def _noun(kind: Kind) -> str:
    return "statement" if kind is Kind.SYMBOL else kind.value


def _chunks_of_comments(script: Script) -> Iterator[Found]:
    for source in script.ddl:
        comments = []
        has_code = False
        for token in source.tokens:
            if token.kind is Kind.COMMENT:
                comments.append(token)
            elif token.text == ";":
                if comments and not has_code:
                    yield Found(source, comments[0].start, comments[-1].end, "nothing but comments up to the semicolon")
                comments, has_code = [], False
            elif token.is_code:
                has_code = True
        # Behind a statement, on its line, a comment belongs to it, but a splitter sends it all the same.
        if comments and not has_code:
            yield Found(source, comments[0].start, comments[-1].end, "nothing but comments up to the end of the text")


_GROUP = "split"

RULES = (
    Rule(
        id="comment-semicolon",
        group=_GROUP,
        reason="An installer that splits the text on each semicolon sends the rest of the comment as a statement.",
        fix="Write the comment without a semicolon.",
        fixable=True,
        find=_semicolons_in_comments,
    ),
    Rule(
        id="comment-apostrophe",
        group=_GROUP,
        reason="A splitter that minds quotes takes the apostrophe for the beginning of a string.",
        fix="Write the comment without an apostrophe.",
        fixable=True,
        find=_apostrophes_in_comments,
    ),
    Rule(
        id="uneven-quotes",
        group=_GROUP,
        reason="A splitter that counts apostrophes is out of step from the first one that has no partner.",
        fix="Write an apostrophe in a string as two, not behind a backslash, and none in names.",
        find=_uneven_quotes,
    ),
    Rule(
        id="comment-only-chunk",
        group=_GROUP,
        reason="Sent alone, a comment is an empty query, which several drivers refuse.",
        fix="Put the comment above a statement.",
        find=_chunks_of_comments,
    ),
    Rule(
        id="statement-cut",
        group=_GROUP,
        default=False,
        reason="A text that installers split on each semicolon must hold none within a statement.",
        fix="Take the semicolon out, or give up the promise and send the text whole.",
        find=_cut_statements,
    ),
    Rule(
        id="dollar-quote",
        group=_GROUP,
        default=False,
        reason="A splitter that minds strings seldom minds dollar quotes.",
        fix="Write the string with apostrophes, or give up the promise and send the text whole.",
        find=_dollar_quotes,
    ),
)
