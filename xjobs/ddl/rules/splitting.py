"""Owns the rules of a text that installers split on every `;`."""

from __future__ import annotations

from collections.abc import Iterator

from xjobs.ddl.findings import Rule
from xjobs.ddl.lexer import Kind, Token, tokenize
from xjobs.ddl.positions import shown
from xjobs.ddl.script import Edit, Found, Script
from xjobs.ddl.sources import Source

__all__ = ["RULES"]


def _comments(script: Script) -> Iterator[tuple[Source, Token]]:
    for source in script.ddl:
        for token in tokenize(source.text):
            if token.kind is Kind.COMMENT:
                yield source, token


def _semicolons_in_comments(script: Script) -> Iterator[Found]:
    return _in_comments(script, ";", ",", "a semicolon")


def _apostrophes_in_comments(script: Script) -> Iterator[Found]:
    return _in_comments(script, "'", "", "an apostrophe")


def _in_comments(script: Script, character: str, instead: str, noun: str) -> Iterator[Found]:
    for source, comment in _comments(script):
        places = [comment.start + at for at, each in enumerate(comment.text) if each == character]
        if places:
            message = f"{noun} in the comment {shown(comment.text)}"
            edits = tuple(Edit(place, place + 1, instead) for place in places)
            yield Found(source, places[0], comment.end, message, edits)


RULES = (
    Rule(
        id="comment-semicolon",
        group="split",
        reason="An installer that splits the text on each semicolon sends the rest of the comment as a statement.",
        fix="Write the comment without a semicolon.",
        fixable=True,
        find=_semicolons_in_comments,
    ),
    Rule(
        id="comment-apostrophe",
        group="split",
        reason="A splitter that minds quotes takes the apostrophe for the beginning of a string.",
        fix="Write the comment without an apostrophe.",
        fixable=True,
        find=_apostrophes_in_comments,
    ),
)
