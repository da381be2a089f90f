"""The program `ropeserve`: what is Python's by nature. The rest is `ropectl`.

Exit status 0: success; 1: a config or a file is at fault, with the reason on stderr; 2: wrong
usage.
"""
from __future__ import annotations

import argparse
import sys
from typing import Any, Sequence

from . import __version__
from .errors import RopeError


def _add_rope_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layer_type", metavar="NAME", help="of a config whose layers differ")
    parser.add_argument("--layer", type=int, metavar="N", help="in place of --layer_type")
    parser.add_argument("--sub_config", metavar="PATH", help="such as vision_config")
    parser.add_argument("--head_dim", type=int, metavar="N", help="where the config does not say")
    parser.add_argument("--seq_len", type=int, metavar="N",
                        help="the length that decides dynamic and longrope")


def _rope_of(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("layer_type", "layer", "sub_config", "head_dim", "seq_len")
    return {name: value for name in names
            if (value := getattr(arguments, name)) is not None}


def _plot(arguments: argparse.Namespace) -> int:
    try:
        from .plot import figure
    except ModuleNotFoundError as error:
        print(f"plot: {error.name} is missing: pip install ropeserve[plot]", file=sys.stderr)
        return 1
    made = figure(arguments.config, arguments.other, **_rope_of(arguments))
    made.savefig(arguments.output)
    return 0


def _output(path: str) -> str:
    if not path.lower().endswith((".png", ".svg", ".pdf")):
        raise argparse.ArgumentTypeError(f"got {path}, want a name that ends in .png, .svg or .pdf")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropeserve", description=__doc__.split("\n\n")[0])
    parser.add_argument("--version", action="version", version=f"ropeserve {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plot = commands.add_parser(
        "plot", help="draw frequencies, wavelengths and decay of one config, or of two",
        description="Draws inverse frequencies, wavelengths and decay with distance.")
    plot.add_argument("config", metavar="CONFIG", help="a config.json, or the name of a preset")
    plot.add_argument("other", metavar="CONFIG", nargs="?", help="another one, drawn over it")
    plot.add_argument("--output", required=True, type=_output, metavar="FILE",
                      help="a name that ends in .png, .svg or .pdf")
    _add_rope_flags(plot)
    plot.set_defaults(run=_plot)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without the program's name; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        status: int = given.run(given)
        return status
    except (RopeError, OSError) as error:
        print(f"ropeserve: {error}", file=sys.stderr)
        return 1
