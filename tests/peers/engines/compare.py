"""Compares what describe claims of an engine with what the engine's own code made.

Usage: compare.py [-v] [FILE...]
FILE: what a recorder wrote; default: each of data/. Needs the package ropeserve, no engine and no
network. Exit status: 1 if a claim is wrong, or a difference that is not in known.py is not claimed.
"""

import argparse
import collections
import functools
import json
import math
import pathlib
import re
import sys

import known
import records
import ropeserve
from ropeserve.client import own_engine
from ropeserve.errors import RopeError

# Relative errors of float32: of inverse frequencies that a ramp blended, and of a factor.
FREQUENCY_ERROR, FACTOR_ERROR = 2e-5, 2e-6
# Of a claimed largest difference. It has the frequency errors of both sides.
CLAIM_ERROR = 1e-3
LENGTHS = (1, 20001)  # as in tables.py
FOURTH_AXIS = "e"  # of llama.cpp: a token of text is at 0 on it, so that its pairs do not turn
VERDICTS = ("agrees", "claim right", "claim wrong", "missing")
COMPAT = ("hf", "vllm")  # engines of which compat gives the newest version's numbers


class Describer:
    """Asks what a config means."""

    def __init__(self, config):
        self._text = json.dumps(config)

    @functools.cache
    def ask(self, **flags):
        """The answers: one, or one for each layer type."""
        chosen = "layer" in flags or "layer_type" in flags
        types = [] if chosen else ropeserve._core.layer_types(self._text, "")
        return [own_engine().describe(config=self._text, **{**flags, **each}).json
                for each in [{"layer_type": name} for name in types] or [{}]]


def places_of(module):
    """The flags of the layers that have the module."""
    if "layer_type" in module:
        return [{"layer_type": module["layer_type"]}]
    if module["class"] == "Gemma3RotaryEmbedding":  # one object for each of two layer types
        is_local = module["at"].endswith("rotary_emb_local")
        return [{"layer_type": "sliding_attention" if is_local else "full_attention"}]
    found = re.findall(r"\blayers\.([\d,]+)\.|\bh\.([\d,]+)\.", module["at"] + ".")
    numbers = [n for pair in found for n in ",".join(pair).split(",") if n]
    return [{"layer": int(number)} for number in dict.fromkeys(numbers)] or [{}]


def answers_of(describer, module, seq_len):
    """(flags, answer) of each different answer for the layers of a module that rotate."""
    different = {}
    for flags in places_of(module):
        try:
            answers = describer.ask(seq_len=seq_len, **flags)
        except RopeError:
            answers = describer.ask(seq_len=seq_len)
            flags = {}
        for answer in answers:
            if answer["rotates"]:
                different.setdefault(answer["config_id"], (flags, answer))
    return list(different.values())


def close(a, b, error):
    return abs(a - b) <= error * max(abs(a), abs(b))


def relative(ours, theirs):
    """The largest relative difference of an inverse frequency; infinity: other channels."""
    if len(ours) != len(theirs):
        return math.inf
    pairs = zip(ours, theirs, strict=True)
    return max(abs(a - b) / abs(a) if a else abs(b) for a, b in pairs)


def same_numbers(answer, module):
    return (
        close(answer["attention_factor"], module["factor"], FACTOR_ERROR)
        and relative(answer["inv_freq"], module["inv_freq"]) <= FREQUENCY_ERROR
    )


def shape_difference(answer, module):
    """What differs of the pairs and axes, which no reading claims; or None."""
    pairing = answer["pairing"].removeprefix("PAIRING_").lower()
    if "neox" in module and pairing != "unspecified" and module["neox"] != (pairing == "half"):
        return f"pairing {pairing} here, is_neox_style {module['neox']} there"
    ours = [int(n) for n in answer["config"]["mrope_section"]]
    if ours and module.get("mrope_section", ours) != ours:
        return f"mrope_section {ours} here, {module['mrope_section']} there"
    return None


def release(text):
    return [int(n) for n in re.findall(r"\d+", text)]


def reading_of(answer, engine, version):
    """The reading of a version; None: nothing is claimed."""
    for reading in answer["readings"]:
        first, _, last = reading["version"].partition(" to ")
        if reading["implementation"] != engine:
            continue
        if release(first) <= release(version) <= release(last or first):
            return reading
    return None


def applies(reading, context):
    """Whether a claim is made of an engine that is started with a context."""
    above = re.search(r"if it is started with a context above (\d+)", reading["difference"])
    return above is None or context > int(above.group(1))


def claim_error(answer, reading, module):
    """What is wrong with the numbers of a claim; or None."""
    if reading["attention_factor"] == 0:
        return "claimed to have no such rotation"
    if not close(reading["attention_factor"], module["factor"], FACTOR_ERROR):
        return f"factor {reading['attention_factor']:.9g} claimed, is {module['factor']}"
    claimed = float(reading["inv_freq_max_relative"])
    is_so = relative(answer["inv_freq"], module["inv_freq"])
    if claimed != is_so and abs(claimed - is_so) > CLAIM_ERROR * claimed + FREQUENCY_ERROR:
        return f"frequencies differ by {claimed:.6g} claimed, by {is_so:.6g} in fact"
    return None


def numbers_of(answer, module):
    return (
        f"factor {answer['attention_factor']:.9g} here, {module['factor']} there; frequencies "
        f"differ by {relative(answer['inv_freq'], module['inv_freq']):.3g}"
    )


class Judge:
    """Verdicts on the modules of one config."""

    def __init__(self, describer, engine, version, most):
        self._describer, self._engine, self._version = describer, engine, version
        self._most = most
        self._lengths = [length for length in LENGTHS if length <= most]

    def verdicts(self, module):
        """(verdict, words) of each different answer that its layers have."""
        lengths = [module["length"]] if "length" in module else self._lengths
        worst = {}
        for length in lengths:
            answers = answers_of(self._describer, module, length)
            if not answers:
                worst[0] = ("missing", "no layer that has it rotates here")
            for place, (flags, answer) in enumerate(answers):
                verdict = self._judge(flags, answer, module, length)
                worst[place] = max(worst.get(place, verdict), verdict, key=_badness)
        return list(worst.values())

    def _judge(self, flags, answer, module, length):
        reading = reading_of(answer, self._engine, self._version)
        if reading is not None and not applies(reading, self._most):
            reading = None
        shape = shape_difference(answer, module)
        if shape is not None:
            return "missing", shape
        same = same_numbers(answer, module)
        if reading is None:
            return ("agrees", "") if same else ("missing", numbers_of(answer, module))
        said = f"says at length {length}: {reading['difference']}"
        if reading["attention_factor"] == 0 and FOURTH_AXIS in module.get("axes", ""):
            return "claim right", said
        error = claim_error(answer, reading, module)
        if self._version not in reading["executed"].split(", "):
            error = f"executed is \"{reading['executed']}\", which lacks {self._version}"
        if error is None and same:
            error = "no number differs"
        if error is None:
            error = self._compat_error(flags, reading, module, length)
        return ("claim wrong", f"{said}: {error}") if error else ("claim right", said)

    def _compat_error(self, flags, reading, module, length):
        """What is wrong with the numbers of compat, where it means this version; or None."""
        last = reading["version"].rpartition(" ")[2]
        if self._engine not in COMPAT or last != known.NEWEST[self._engine]:
            return None
        answers = self._describer.ask(compat=self._engine, seq_len=length, **flags)
        if any(same_numbers(answer, module) for answer in answers):
            return None
        return f"compat {self._engine}: {numbers_of(answers[0], module)}"


def _badness(verdict):
    return VERDICTS.index(verdict[0])


def judge_config(describer, engine, version, made):
    """(what, verdict, words) of each module of a config."""
    judge = Judge(describer, engine, version, made["max_model_len"])
    for module in made["modules"]:
        what = f"{module['class']} of {module.get('layer_type') or module['at']}"
        try:
            for verdict, words in judge.verdicts(module):
                yield what, verdict, words
        except RopeError as error:
            yield what, "missing", f"refused here: {error}"


@functools.cache
def known_configs():
    return dict(each for path in records.inputs() for each in records.configs_of(path))


@functools.cache
def describer(text):
    """They remember answers, which files of records share."""
    return Describer(json.loads(text))


class Table:
    """Counts verdicts by engine, version and set; prints them, and the bad ones by name."""

    def __init__(self, verbose):
        self._verbose = verbose
        self._counts = collections.defaultdict(collections.Counter)
        self.bad = 0
        self._used, self._seen = set(), set()

    def add(self, key, config, what, verdict, words):
        known_entry = known.entry_of(key[0], config)
        self._seen.add(known_entry)
        if verdict not in ("missing", "claim wrong"):
            known_entry = None
        self._used.add(known_entry)
        self._counts[key][verdict] += 1
        self._counts[key]["known"] += known_entry is not None
        bad = verdict in ("claim wrong", "missing") and known_entry is None
        self.bad += bad
        if self._verbose or verdict in ("claim wrong", "missing"):
            tail = f" (known: {known_entry[2]})" if known_entry else ""
            print(f"{' '.join(key)}: {config}: {what}: {verdict}: {words}{tail}")

    def count(self, key, verdict):
        self._counts[key][verdict] += 1

    def print(self):
        names = ("configs", "refused", "modules", *VERDICTS, "known")
        print("engine version".ljust(24), *(name.rjust(11) for name in names))
        for key, counts in sorted(self._counts.items()):
            counts["modules"] = sum(counts[verdict] for verdict in VERDICTS)
            print(" ".join(key).ljust(24), *(str(counts[name]).rjust(11) for name in names))

    def unused(self):
        """Entries of known.py whose configs do not differ."""
        return self._seen - self._used - {None}


def compare(path, table):
    data = records.load(path)
    key = (data["engine"], data["version"])
    for name, made in data["configs"].items():
        row = (*key, "stress") if "/" in name else key
        table.count(row, "configs" if "modules" in made else "refused")
        if "modules" not in made:
            continue
        config = records.spelt(
            known_configs()[name.split()[0]], name, data["notes"].get("transformers", "")
        )
        told = describer(json.dumps(config))
        for what, verdict, words in judge_config(told, *key, made):
            table.add(row, name, what, verdict, words)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="print each module")
    arguments = parser.parse_args()
    table = Table(arguments.verbose)
    files = [path for path in sorted(records.DATA.glob("*.json")) if not records.is_set(path)]
    for path in arguments.files or files:
        compare(path, table)
    table.print()
    for engines, configs, _ in table.unused():
        print(f"known.py: {engines}: {configs}: no module differs any more")
    return 1 if table.bad or table.unused() else 0


if __name__ == "__main__":
    sys.exit(main())
