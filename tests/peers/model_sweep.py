"""Every model of transformers against the service: which layer rotates, and by how much.

Each model is built small, with random weights and its config as save_pretrained writes it. Each
call of its rotary function is asked of the service by its layer, without a pairing; a layer that
makes no call must be one that does not rotate.

Exit status: 0 if no case is different, 1 otherwise.
"""

import argparse
import collections
import inspect
import json
import logging
import random
import re
import sys
import warnings

import compare
import model_calls
import model_configs
import numpy
import peer
import rotary_classes
import service
import torch
import transformers
from service import config_pb2, describe_pb2
from transformers import PreTrainedModel

STARTS = (0, 3000, 40_000, 99_991)
# Relative to (|a| + |b|) m of a pair: the rounding of a float32 rotation, and that of its angle.
ROUNDING, ANGLE_ROUNDING = 1e-6, 3e-7
EXACT_TIMES = 2
# The class makes the base of dynamic in float32: five operations of half a unit, 6e-8, each.
DYNAMIC_BASE_ERROR = 5 * 6e-8


class Different(Exception):
    """The service's answer is another one than the model's."""


class NotBuilt(Exception):
    """The class does not accept the drawn config, or does not run with it."""


def models():
    """[(rotary class, model class)], one per config class: the model without a head."""
    found = {}
    rotaries = collections.defaultdict(list)
    for rotary in rotary_classes.find():
        rotaries[rotary.module].append(rotary)
    for module, in_module in rotaries.items():
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if not own or not issubclass(cls, PreTrainedModel) or cls.config_class is None:
                continue
            if cls.config_class in found or not _takes_text(cls) or _is_composite(cls):
                continue
            if not rotary_classes.has_rope(cls.config_class):
                continue
            exact = [r for r in in_module if r.config_cls is cls.config_class]
            texts = [r for r in in_module if "Vision" not in r.cls.__name__]
            found[cls.config_class] = ((exact or texts or in_module)[0], cls)
    return list(found.values())


def _takes_text(cls):
    names = inspect.signature(cls.forward).parameters
    return "position_ids" in names and ("input_ids" in names or "inputs_embeds" in names)


def _is_composite(cls):
    """Whether the class holds other models: each of them is one by itself."""
    return cls.__name__.endswith("PreTrainedModel") or bool(cls.config_class.sub_configs)


def _inputs(cls, config, positions):
    names = inspect.signature(cls.forward).parameters
    inputs = {"position_ids": torch.from_numpy(positions)}
    if "use_cache" in names:
        inputs["use_cache"] = False
    if "input_ids" in names:
        inputs["input_ids"] = torch.arange(1, model_calls.TOKENS + 1)[None]
    else:
        inputs["inputs_embeds"] = torch.randn(1, model_calls.TOKENS, config.hidden_size)
    return inputs


def _positions(rng, axes, start):
    """One row from `start` on; with axes, the others elsewhere: no two axes are equal."""
    rows = [[start + i for i in range(model_calls.TOKENS)]]
    for axis in range(1, axes):
        rows.append([p + axis * rng.randrange(1, 50) for p in rows[0]])
    return numpy.array(rows, dtype="int64").reshape((axes, 1, -1) if axes > 1 else (1, -1))


def run(rng, rotary, cls, config):
    """(calls, number of layers). NotBuilt: the class does not run with the config."""
    try:
        torch.manual_seed(rng.randrange(2**32))
        model = cls(config).eval()
        counts = ("num_hidden_layers", "num_layers", "n_layer", "num_layers_per_stack")
        sizes = [n for name in counts if (n := getattr(config, name, None))]
        layers = next(
            found for n in sorted(sizes) if (found := model_calls.layers_of(model, n)) is not None
        )
        rotaries = {c.cls for c in rotary_classes.find() if c.module is rotary.module}
        calls = []
        for start in STARTS:
            positions = _positions(rng, peer.axes(rotary), start)
            with model_calls.Recorder(model, rotary.module, rotaries, layers) as recorder:
                with torch.no_grad(), compare.rounded_cos_and_sin():
                    model(**_inputs(cls, config, positions))
            calls += recorder.calls
        return calls, len(layers)
    except Exception as error:  # whatever a class raises, it does not run with this config
        raise NotBuilt(repr(error)) from error


def _padded(described, x):
    """The whole head of a tensor that holds the channels that turn; and where these are."""
    config, width = described.config, x.shape[-1]
    if width == config.head_dim:
        return x, slice(None)
    if width != 2 * len(described.inv_freq):
        raise Different(f"the code turns {width} of {config.head_dim} channels")
    turned = slice(config.rotary_offset, config.rotary_offset + width)
    head = numpy.zeros((*x.shape[:-1], config.head_dim), dtype="float32")
    head[..., turned] = x
    return head, turned


def _excess(described, x, positions, ours, theirs, times):
    """The largest error in units of the tolerance."""
    a, b = compare.pair_channels(described, described.pairing)
    position = positions.reshape(-1, positions.shape[-1]).max(axis=0)[:, None]
    blended = numpy.array(described.scaling) == describe_pb2.FREQUENCY_SCALING_BLENDED
    dynamic = described.config.rope_type == "dynamic"
    angle_error = (
        ANGLE_ROUNDING
        + compare.BLENDED_FREQUENCY_ERROR * blended
        + DYNAMIC_BASE_ERROR * dynamic
    )
    relative = ROUNDING + angle_error * position * numpy.abs(described.inv_freq)
    size = described.attention_factor * (abs(x[..., a]) + abs(x[..., b]))
    tolerance = numpy.zeros(x.shape)
    for channels in compare.pair_channels(described, compare.left_order(described)):
        tolerance[..., channels] = times * size * relative
    return compare.excess(ours, theirs, tolerance)


class Asked:
    """The service's descriptions of one config, by layer, precision and length."""

    def __init__(self, server, config_json):
        self._server, self._config_json, self._known = server, config_json, {}

    def spec(self, layer, precision):
        return service.spec(self._config_json, "", None, precision, layer)

    def describe(self, layer, precision, seq_len):
        key = layer, precision, seq_len
        if key not in self._known:
            self._known[key] = self._server.describe(self.spec(layer, precision), seq_len)
        return self._known[key]


def check_call(server, asked, call):
    """Different: the service gives another layer, or other numbers."""
    positions = call.positions.numpy()
    seq_len = int(positions.max()) + 1
    precisions = {config_pb2.PRECISION_EXACT: EXACT_TIMES, config_pb2.PRECISION_HF: 1}
    for precision, times in precisions.items():
        described = asked.describe(call.layer, precision, seq_len)
        if not described.rotates:
            raise Different(f"layer {call.layer} rotates, the service says that it does not")
        for x, theirs in zip(call.before, call.after):
            head, turned = _padded(described, x.numpy())
            rows = compare.service_rows(positions)
            spec = asked.spec(call.layer, precision)
            ours = server.rotate(spec, rows, head, head, described.channel_order)[0]
            whole = numpy.zeros(head.shape, dtype="float32")
            whole[..., turned] = theirs.numpy()
            ratio = _excess(described, head, positions, ours, whole, times)
            if ratio > 1:
                name = config_pb2.Precision.Name(precision)
                raise Different(f"layer {call.layer}, {name}: {ratio:.3g} x the tolerance")


def verdict(server, config_json, calls, count):
    """("right" | "refused" | "different", reason)."""
    asked = Asked(server, config_json)
    try:
        for call in calls:
            check_call(server, asked, call)
        for layer in set(range(count)) - {call.layer for call in calls}:
            if asked.describe(layer, config_pb2.PRECISION_EXACT, 1).rotates:
                raise Different(f"layer {layer} does not rotate, the service says that it does")
    except Different as error:
        return "different", str(error)
    except service.Refused as error:
        return "refused", str(error)
    return "right", ""


def sweep_model(rotary, cls, wanted, server, results):
    rng = random.Random(cls.__name__)
    outcomes = collections.Counter()
    reasons = {}
    for attempt in range(wanted * 6 + 1):
        if outcomes["cases"] > wanted:
            break
        try:
            plain = not outcomes["cases"]
            config = model_configs.draw(rng, rotary, cls.config_class, plain)
            if config is None:
                continue
            calls, count = run(rng, rotary, cls, config)
        except Exception as error:
            outcomes["not built"] += 1
            reasons["not built"] = repr(error)
            logging.info("%s: %r", cls.__name__, error)
            if outcomes["not built"] > 3 * wanted and not outcomes["cases"]:
                break
            continue
        outcomes["cases"] += 1
        outcomes["draws"] += len(calls)
        texts = [config.to_json_string()]
        lists = model_configs.without_lists(config)
        if lists is not None:
            texts.append(json.dumps(lists))
        for text in texts:
            outcome, reason = verdict(server, text, calls, count)
            outcomes[outcome] += 1
            if reason:
                reasons[outcome] = reason
                logging.info("%s: %s: %s", cls.__name__, reason, text)
    return outcomes, reasons


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--configs", type=int, default=10, help="random configs per model")
    parser.add_argument("--only", default="", metavar="REGEX", help="models to compare, by name")
    parser.add_argument("-v", action="store_true", help="print the configs that differ")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    logging.basicConfig(
        level=logging.INFO if arguments.v else logging.CRITICAL, format="%(message)s"
    )
    torch.set_num_threads(1)
    totals = collections.Counter()
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"1 default and {arguments.configs} random configs per model"
    )
    with service.Service() as server:
        for rotary, cls in models():
            if not re.search(arguments.only, cls.__name__):
                continue
            outcomes, reasons = sweep_model(rotary, cls, arguments.configs, server, totals)
            totals.update(outcomes)
            totals["models"] += outcomes["cases"] > 0
            found = next((o for o in ("different", "refused", "right") if outcomes[o]), "not built")
            totals[f"models {found}"] += 1
            counts = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
            why = "".join(f"; {o}: {reason[:200]}" for o, reason in reasons.items())
            print(f"{found:10} {cls.__name__}: {counts}{why}", flush=True)
    print(
        f"{totals['models']} models, {totals['cases']} cases, {totals['draws']} rotations; "
        + ", ".join(f"{n} {outcome}" for outcome, n in sorted(totals.items()))
    )
    return 1 if totals["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
