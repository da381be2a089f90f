"""Every rotary class of transformers against the service: its config.json and its layer type.

Exit status: 0 if no class is different or refused, 1 otherwise.
"""

import argparse
import collections
import inspect
import json
import logging
import pathlib
import random
import re
import sys
import warnings

import compare
import numpy
import peer
import rotary_classes
import service
import torch
import transformers

# Rotary classes that do not turn q and k by integers: what the service refuses, whatever else it
# says, the reason, and the line of transformers/models of transformers 5.23.0 that shows it.
REFUSED = json.loads(pathlib.Path(__file__).with_name("reasons.json").read_text())

# One golden file for each class.
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
KEPT_TOKENS = 2
# Keys that have nothing to do with a rotation and make the files long.
UNRELATED = ("id2label", "label2id", "vocab_size", "mlp_layer_types", "architectures",
             "transformers_version")


def candidates(rotary):
    """The config classes that the class may be built from, the annotated one first."""
    if rotary.config_cls is None:
        return []
    module = sys.modules[rotary.config_cls.__module__]
    own = [
        c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__
    ]
    # A class without a model_type is known by its place in a composite.
    named = [c for c in own if getattr(c, "model_type", "") or rotary_classes.places(c)]
    own = [c for c in named if rotary_classes.has_rope(c)]
    return sorted(own, key=lambda c: c is not rotary.config_cls)


class Results:
    """The outcomes of one class."""

    def __init__(self):
        self.counts = collections.Counter()
        self.reasons = {}
        self.golden = None
        self.nested = 0

    def add(self, case, outcome, reason):
        label = case.layer_type or "-"
        if case.sub_config:
            self.nested += 1
            label += f" of {case.sub_config}"
        self.counts[label, outcome] += 1
        if reason:
            self.reasons[outcome] = reason
        if case.sub_config:
            return  # golden files hold the config alone
        if outcome == "right" and (self.golden is None or _size(case) < _size(self.golden)):
            self.golden = case

    def outcome(self):
        found = {outcome for _, outcome in self.counts}
        return next((o for o in ("different", "refused", "right") if o in found), "no config runs")


def _size(case):
    """Small files, but no plain default where the class also ran a scaled one."""
    return case.inputs[0].size if '"rope_type": "default"' not in case.config_json else 10**9


def sweep_class(rotary, wanted, server):
    results = Results()
    for config_cls in candidates(rotary):
        rng = random.Random(f"{rotary.name} {config_cls.__name__}")
        places = rotary_classes.places(config_cls)
        ran = 0
        for attempt in range(wanted * 12):
            # Every other config is sent inside a composite that holds the class, if there is one.
            inside = attempt % 2 or not config_cls.model_type
            place = places[attempt // 2 % len(places)] if places and inside else None
            try:
                config, module, cases = compare.draw_cases(
                    rng, rotary, config_cls, attempt % 3 != 2, place
                )
            except compare.NotRunnable as error:
                logging.info("%s: %s", rotary.name, error)
                if attempt > wanted * 6 and not ran:
                    break
                continue
            ran += 1
            for case in cases:
                results.add(case, *compare.verdict(rotary, module, config, case, server))
            if ran == wanted:
                break
        if ran and config_cls is rotary.config_cls:
            break  # the module's other config classes are for its other rotary classes
    return results


def refusal(server, refused):
    """("refused by name", why), or ("not refused", why it should be)."""
    why = f"{refused['reason']} ({refused['line']})"
    try:
        server.describe(service.spec(json.dumps(refused["config"]), "", None), 1)
    except service.Refused as error:
        named = "model_type" in str(error) or "mrope_section" in str(error)
        return ("refused by name" if named else "not refused"), f"{why}: {error}"
    return "not refused", why


def _shortest(values):
    """Numbers with the fewest digits that read back to the same float32."""
    return [float(str(v)) for v in numpy.asarray(values, dtype="float32").ravel()]


def write_golden(rotary, case):
    """For tests/conformance/golden_test.cc."""
    config = json.loads(case.config_json)
    config = {key: value for key, value in config.items() if key not in UNRELATED}
    kept = slice(0, KEPT_TOKENS)
    document = {
        "format": "rope-peer-1",
        "class": rotary.name,
        "source": f"transformers {transformers.__version__}, {rotary.source}",
        "config": config,
        "layer_type": case.layer_type,
        "seq_len": int(case.positions.max()) + 1,
        "positions": case.positions[..., 0, kept].tolist()
        if case.positions.ndim == 3
        else case.positions[:, kept].tolist(),
        "inv_freq": sorted(_shortest(case.theirs.inv_freq)) if peer.keeps(rotary) else None,
        "q": _shortest(case.inputs[0][0, 0, kept]),
        "q_out": _shortest(case.theirs.q[0, 0, kept]),
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    (GOLDEN / f"{rotary.name}.json").write_text("{\n" + lines + "\n}\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--configs", type=int, default=20, help="random configs per class")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="classes to compare, by module.Class"
    )
    parser.add_argument("--write_golden", action="store_true", help="write tests/peers/golden")
    parser.add_argument(
        "-v", action="store_true", help="say why a class does not run a drawn config"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.NOTSET if arguments.v else logging.CRITICAL)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    totals, cases, nested = collections.Counter(), 0, 0
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{arguments.configs} configs per class"
    )
    with service.Service() as server:
        for rotary in rotary_classes.find():
            if not re.search(arguments.only, rotary.name):
                continue
            if rotary.name in REFUSED:
                outcome, answer = refusal(server, REFUSED[rotary.name])
                totals[outcome] += 1
                print(f"{outcome:15} {rotary.name}: {answer}")
                continue
            results = sweep_class(rotary, arguments.configs, server)
            outcome = results.outcome()
            totals[outcome] += 1
            cases += sum(results.counts.values())
            nested += results.nested
            counts = ", ".join(
                f"{label} {o} {n}" for (label, o), n in sorted(results.counts.items())
            )
            why = "".join(f"; {o}: {reason[:160]}" for o, reason in results.reasons.items())
            print(f"{outcome:15} {rotary.name}: {counts}{why}", flush=True)
            if arguments.write_golden and results.golden:
                write_golden(rotary, results.golden)
    print(
        f"{cases} cases, {nested} of them inside a composite config; "
        + ", ".join(f"{n} {outcome}" for outcome, n in sorted(totals.items()))
    )
    return 1 if totals.keys() - {"right", "refused by name"} else 0


if __name__ == "__main__":
    sys.exit(main())
