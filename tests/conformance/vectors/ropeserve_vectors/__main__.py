"""python -m ropeserve_vectors module:function, or --onnx=GRAPH. Exit status 1: a case failed."""
import argparse
import importlib
import sys

from . import FLAGS, __version__, cases, run


def main() -> int:
    parser = argparse.ArgumentParser("python -m ropeserve_vectors", description=(
        "Runs an implementation of RoPE over test vectors."))
    parser.add_argument("function", nargs="?", metavar="module:function")
    parser.add_argument("--onnx", metavar="GRAPH", help="an ONNX graph, in place of a function")
    parser.add_argument("--pairing", choices=("half", "interleaved"),
                        help="of the graph (half without it); of the cases")
    parser.add_argument("--flag", choices=FLAGS)
    parser.add_argument("--rope_type")
    parser.add_argument("--name", default="*", help="with wildcards")
    parser.add_argument("--list", action="store_true", help="prints the cases and runs nothing")
    parser.add_argument("--version", action="version", version=__version__)
    said = parser.parse_args()
    chosen = cases(said.flag, said.rope_type, said.pairing, said.name)
    if said.list:
        for case in chosen:
            print(f"{case.name:<44} {case.flag:<10} {case.reason}")
        return 0
    if bool(said.function) == bool(said.onnx):
        parser.error("give module:function or --onnx")
    if said.onnx:
        from . import onnx
        function = onnx.function(said.onnx, said.pairing or "half")
    else:
        sys.path.insert(0, "")
        module, _, name = said.function.partition(":")
        function = getattr(importlib.import_module(module), name)
    report = run(function, chosen)
    print(report)
    return 1 if report.failed else 0


sys.exit(main())
