"""Finds the shell commands of a Markdown page.

Commands are in code blocks (fenced without a language, or indented), and in the text between
backquotes if they begin with a program of this tree or a script, and have arguments or a path.
"""

import dataclasses
import itertools
import re

# What a command begins with, after assignments of variables.
PROGRAM = (
    r"(?:build/(?:bin|tests)/\S+|(?:deploy|tests)/\S*\.sh|\S+/bin/rope\w*|ropectl|rope_\w+|docker"
    r"|ctest|cmake|curl|jq|grpcurl|kubectl|git|pip|for|install|sudo|apt-get|python3?)"
)
_ASSIGNMENTS = r"(?:\w+=\S+ )*"
_COMMAND = re.compile(_ASSIGNMENTS + PROGRAM + r"(?=\s|$)")
_SHELL = {"", "sh", "bash", "shell", "console"}


@dataclasses.dataclass(frozen=True)
class Command:
    page: str
    line: int
    text: str  # lines joined, without the prompt and without a comment
    output: tuple = ()  # the lines below it in a block with prompts

    def __str__(self):
        return f"{self.page}:{self.line}: {self.text}"


def _is_unfinished(text):
    return text.endswith(("\\", "|")) or text.count("'") % 2 == 1


def _join(lines):
    """The command that begins in the first line, and the number of its lines."""
    without_comments = [re.sub(r"\s+# .*$", "", line).strip() for line in lines]
    text, count = without_comments[0], 1
    while _is_unfinished(text) and count < len(lines):
        text = text.removesuffix("\\").rstrip() + " " + without_comments[count]
        count += 1
    return text, count


def commands_of_block(lines):
    """[(index of the line, command, its output)]. A block of output, data or another language has
    none.

    In a block with prompts the other lines are output. In a block that begins with a command all
    lines are commands.
    """
    has_prompts = any(line.strip().startswith("$ ") for line in lines)
    if not has_prompts and not _COMMAND.match(lines[0].strip()):
        return []
    found, at = [], 0
    while at < len(lines):
        line = lines[at].strip()
        if not line or (has_prompts and not line.startswith("$ ")):
            at += 1
            continue
        text, count = _join([line.removeprefix("$ "), *lines[at + 1 :]])
        at, begin = at + count, at
        output = itertools.takewhile(lambda line: not line.strip().startswith("$ "), lines[at:])
        found.append((begin, text, tuple(line.strip() for line in output) if has_prompts else ()))
    return found


def _parts(page):
    """The code blocks that may be shell, [(lines, number of the first)], and in the same form the
    paragraphs and the rows of tables."""
    blocks, texts = [], []
    fence, code, paragraph = None, [], []
    before = ""

    def end(lines, kind, number):
        if lines:
            kind.append((lines[:], number - len(lines)))
            lines.clear()

    for number, line in enumerate([*page.split("\n"), ""], 1):
        is_code = line.startswith("    ") and (code or not before.strip() or before.startswith("#"))
        before = line
        if line.strip().startswith("```"):
            end(code, blocks, number)
            end(paragraph, texts, number)
            if fence is None:
                fence = (line.strip()[3:].strip(), [])
            else:
                language, lines = fence
                fence = None
                if language in _SHELL and lines:
                    blocks.append((lines, number - len(lines)))
        elif fence is not None:
            fence[1].append(line)
        elif is_code:
            end(paragraph, texts, number)
            code.append(line)
        else:
            end(code, blocks, number)
            if not line.strip() or line.startswith("|"):
                end(paragraph, texts, number)
            if line.strip():
                paragraph.append(line)
    return blocks, texts


def _is_command(span):
    """Whether the text between backquotes is one, and no name: a path, or a program's arguments."""
    words = span.split()
    has_arguments = len(words) > 2 or (len(words) == 2 and not words[1].isalpha())
    return bool(_COMMAND.match(span)) and ("/" in words[0] or has_arguments)


def commands_of(page, text):
    found = []
    blocks, texts = _parts(text)
    for block, begin in blocks:
        found += [Command(page, begin + at, *rest) for at, *rest in commands_of_block(block)]
    for lines, begin in texts:
        joined = "\n".join(lines)
        for span in re.finditer(r"`([^`]+)`", joined):
            words = " ".join(span[1].split())
            if _is_command(words):
                found.append(Command(page, begin + joined.count("\n", 0, span.start()), words))
    return sorted(found, key=lambda command: command.line)
