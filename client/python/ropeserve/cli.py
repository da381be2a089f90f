"""The program `ropeserve`: diagnose, plots, and lint, diff and describe, also of GGUF files.

For files of config.json, lint, diff and describe are those of `ropectl`, which has more commands
and needs no Python. Exit status 0: success; 1: findings, a difference, or a file or a config that
is at fault, with the reason on stderr; 2: wrong usage.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import Any, Iterable, Sequence

from . import __version__, _core
from .client import own_engine
from .configs import WEIGHTS, Description, Finding, LayerDifference, diff, lint, named
from .errors import RopeError
from .rope import read_config


def _add_rope_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairing", choices=("half", "interleaved"),
                        help="without it that of the model")
    parser.add_argument("--layer_type", metavar="NAME", help="of a config whose layers differ")
    parser.add_argument("--layer", type=int, metavar="N", help="in place of --layer_type")
    parser.add_argument("--sub_config", metavar="PATH", help="such as vision_config")
    parser.add_argument("--seq_len", type=int, metavar="N",
                        help="the length that decides dynamic and longrope")


def _rope_of(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("pairing", "layer_type", "layer", "sub_config", "head_dim", "seq_len")
    return {name: value for name in names
            if (value := getattr(arguments, name, None)) is not None}


def _fail(error: Exception) -> int:
    print(f"ropeserve: {error}", file=sys.stderr)
    return 1


def _print(arguments: argparse.Namespace, value: object, lines: Iterable[str]) -> None:
    """Lines, or a value as JSON where that is asked for."""
    for line in [json.dumps(value, indent=2)] if arguments.json else lines:
        print(line)


def _finding_line(file: str, finding: Finding) -> str:
    layers = f" [{', '.join(finding.layer_types)}]" if finding.layer_types else ""
    return f"{file}:{finding.line}: {finding.weight}: {finding.message}{layers} [{finding.rule}]"


def _lint(arguments: argparse.Namespace) -> int:
    found: list[tuple[str, list[Finding]]] = []
    status = 0
    for file in arguments.files:
        try:
            found.append((file, lint(file, engine=arguments.engine,
                                     sub_config=arguments.sub_config)))
        except (RopeError, OSError) as error:  # the others are linted all the same
            status = _fail(error)
    _print(arguments,
           [{"file": file, "findings": [dataclasses.asdict(each) for each in findings]}
            for file, findings in found],
           ("\n".join(_finding_line(file, each) for each in findings) or f"{file}: no findings"
            for file, findings in found))
    failing = WEIGHTS[:WEIGHTS.index(arguments.fail_on) + 1]
    fails = any(each.weight in failing for _, findings in found for each in findings)
    return 1 if fails else status


def _difference_lines(layer: LayerDifference, error: float) -> list[str]:
    length = "" if layer.seq_len is None else f", for seq_len {layer.seq_len}"
    lines = [f"{layer.layer_type or 'all layers'}{length}: "
             f"{'equal' if layer.equal else 'different'}"]
    if layer.a is None or layer.b is None:
        return [*lines, f"  only {'B' if layer.a is None else 'A'} has this layer type"]
    for key, a in layer.a.items():
        b = layer.b[key]
        if a != b:
            lines.append(f"  {key:<17} {a} | {b}")
    if layer.note:
        lines.append(f"  {layer.note}")
    if layer.inv_freq is not None:
        lines.append("  inv_freq          first differs at index {index}: {a!r} | {b!r}".format(
            **layer.inv_freq))
    if layer.searched_up_to is not None:
        where = (f"none up to {layer.searched_up_to}" if layer.first_position is None
                 else layer.first_position)
        lines.append(f"  first position    whose cos or sin differ by more than {error:g}: {where}")
    return lines


def _diff(arguments: argparse.Namespace) -> int:
    layers = diff(arguments.a, arguments.b, error=arguments.error, sub_config=arguments.sub_config)
    _print(arguments, [dataclasses.asdict(layer) for layer in layers],
           (line for layer in layers for line in _difference_lines(layer, arguments.error)))
    return int(not all(layer.equal for layer in layers))


def _description_lines(told: Description) -> list[str]:
    findings = [f"warning: {text}" for text in told.warnings]
    for does, readings in (("reads this", told.readings),
                           ("scales attention", told.scale_readings)):
        for each in readings:
            engine = f"{each['engine']} {each['version']}".rstrip()
            findings.append(f"{engine} {does} differently: {each['difference']}")
    if not told.rotates:
        return ["This layer has no rotary embedding: tensors come back unchanged.", *findings]
    settings = {**told.config, "pairing": told.pairing or "not said: rotate needs it",
                "attention_factor": told.attention_factor, "seq_len": told.seq_len,
                "config_id": told.config_id}
    settings.pop("inv_freq", None)  # below
    return [*(f"{key:<33} {value}" for key, value in settings.items()), *findings, "",
            f"{'index':>5}  {'inv_freq':<23} wavelength",
            *(f"{i:>5}  {frequency:<23.17g} {wavelength:.6g}" for i, (frequency, wavelength)
              in enumerate(zip(told.inv_freq, told.wavelengths)))]


def _choices_of(rope: dict[str, Any]) -> list[dict[str, str]]:
    """Each layer type, if layers differ and none is chosen."""
    if "layer" in rope or "layer_type" in rope:
        return [{}]
    within = rope.get("sub_config")
    text = (_core.preset(rope["model"]) if "model" in rope
            else read_config(rope["config"], within)[0])
    return [{"layer_type": name} for name in _core.layer_types(text, within or "")] or [{}]


def _describe(arguments: argparse.Namespace) -> int:
    rope = {**named(arguments.config), **_rope_of(arguments)}
    told = [own_engine().describe(**{**rope, **each}) for each in _choices_of(rope)]
    pages = ["\n".join(_description_lines(each)) for each in told]
    if len(told) > 1:
        pages = [f"{'layer type':<33} {each.layer_type}\n{page}" for each, page in zip(told, pages)]
    value = told[0].json if len(told) == 1 else [each.json for each in told]
    _print(arguments, value, ["\n\n".join(pages)])
    return 0


def _diagnose(arguments: argparse.Namespace) -> int:
    from .diagnose import diagnose
    rope = _rope_of(arguments)
    if arguments.config is not None:
        rope.update(named(arguments.config))
    found = diagnose(arguments.before, arguments.after, layout=arguments.layout,
                     start=arguments.start, positions=arguments.positions,
                     rotary_offset=arguments.rotary_offset, **rope)
    _print(arguments, found.json, [str(found)])
    return int(not found.as_configured.explains)


def _positions(text: str) -> Any:
    """A path, or numbers with commas between them."""
    if text.endswith(".npy"):
        return text
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"got {text}, want a name that ends in .npy, or integers with commas") from None


def _plot(arguments: argparse.Namespace) -> int:
    from .plot import figure
    figure(arguments.config, arguments.other, **_rope_of(arguments)).savefig(arguments.output)
    return 0


def _output(path: str) -> str:
    if not path.lower().endswith((".png", ".svg", ".pdf")):
        raise argparse.ArgumentTypeError(f"got {path}, want a name that ends in .png, .svg or .pdf")
    return path


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"got {text}, want a number above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropeserve", description=__doc__.split("\n\n")[0])
    parser.add_argument("--version", action="version", version=f"ropeserve {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    a_config = "a config.json, a GGUF file, or the name of a preset"

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help)
        made.set_defaults(run=run)
        return made

    made = command("lint", _lint, "What is wrong with, or doubtful about, files.")
    made.add_argument("files", metavar="FILE", nargs="+", help=a_config)
    made.add_argument("--engine", metavar="NAME[@VERSION]", help="only the readings of this engine")
    made.add_argument("--fail_on", choices=WEIGHTS, default="error",
                      help="the lightest finding that gives status 1")
    made.add_argument("--sub_config", metavar="PATH", help="such as vision_config")
    made.add_argument("--json", action="store_true", help="print an array, with each file's object")

    made = command("diff", _diff, "How two files differ, for each layer type.")
    made.add_argument("a", metavar="A", help=a_config)
    made.add_argument("b", metavar="B", help="another one")
    made.add_argument("--error", type=_positive, default=1e-3, metavar="E",
                      help="find the first position whose cos or sin differ by more")
    made.add_argument("--sub_config", metavar="PATH", help="such as vision_config")
    made.add_argument("--json", action="store_true", help="print an array, with each layer type")

    made = command("describe", _describe, "What a config means: its settings and frequencies.")
    made.add_argument("config", metavar="CONFIG", help=a_config)
    made.add_argument("--json", action="store_true", help="print what the schema's Describe says")
    made.add_argument("--head_dim", type=int, metavar="N", help="where the config does not say")
    _add_rope_flags(made)

    made = command("diagnose", _diagnose,
                   "Names what another program did to a tensor that it rotated.")
    made.add_argument("config", metavar="CONFIG", nargs="?", help=a_config)
    made.add_argument("--before", required=True, metavar="FILE.npy", help="the tensor")
    made.add_argument("--after", required=True, metavar="FILE.npy", help="its rotation")
    made.add_argument("--layout", required=True, metavar="AXES",
                      help="a letter for each axis, such as SHD or BHSD")
    made.add_argument("--start", type=int, metavar="N", help="position of the first token")
    made.add_argument("--positions", type=_positions, metavar="0,1,2|FILE.npy",
                      help="positions of all tokens, in place of --start")
    made.add_argument("--rotary_offset", type=int, metavar="N", help="first rotated channel")
    made.add_argument("--json", action="store_true", help="print the explanations as JSON")
    _add_rope_flags(made)

    made = command("plot", _plot, "Draw frequencies, wavelengths and decay of one config, or two.")
    made.add_argument("config", metavar="CONFIG", help=a_config)
    made.add_argument("other", metavar="CONFIG", nargs="?", help="another one, drawn over it")
    made.add_argument("--output", required=True, type=_output, metavar="FILE",
                      help="a name that ends in .png, .svg or .pdf")
    made.add_argument("--head_dim", type=int, metavar="N", help="where the config does not say")
    _add_rope_flags(made)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without the program's name; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        status: int = given.run(given)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = {"matplotlib": "plot", "gguf": "gguf"}.get(package)
        if extra is None:
            raise
        return _fail(ModuleNotFoundError(f"{package} is missing: pip install ropeserve[{extra}]"))
    except (RopeError, OSError) as error:
        return _fail(error)
