"""The files of recorded rotary tables: one for each engine and version, one line a module.

A file is JSON: engine, version, notes, `frequencies` (shared lists of float32, by name) and
`configs`. A config has the modules that the engine's class made, or why the engine made none.
"""

import hashlib
import json
import pathlib
import re
import struct

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE / "data"
CONFIGS = HERE.parent.parent / "conformance" / "configs"
POSITIONS = (0, 1, 7, 100, 1000, 4000, 20000)  # the rows of which a record has the sha256


def to_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def shortest(value):
    """The shortest decimal that is the same float32."""
    single = to_float32(value)
    for digits in range(1, 10):
        text = float(f"{single:.{digits}g}")
        if to_float32(text) == single:
            return int(text) if text == int(text) and abs(text) < 1e6 else text
    return single


def floats(values):
    return [shortest(value) for value in values]


def digest(rows):
    """The sha256 of float32 rows, in the order given."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update(row.astype("<f4").tobytes())
    return sha.hexdigest()


def without_folders(text):
    return re.sub(r"(?<![\w.])/[\w./+-]*/", "", text)


def joined(names):
    """The names, with numbers that differ as one list: layers.0,1,3.attn."""
    groups = {}
    for name in names:
        number = re.search(r"\.(\d+)\.", name)
        key = name if number is None else name[: number.start(1)] + "#" + name[number.end(1) :]
        groups.setdefault(key, []).append(number.group(1) if number else "")
    return " ".join(key.replace("#", ",".join(n)) for key, n in groups.items())


def configs_of(path):
    """(name, config) of each config in a file: one config.json, or a set of named ones."""
    content = json.loads(path.read_text())
    if path.name.endswith(".set.json"):
        yield from content.items()
    else:
        yield path.stem, content


class Writer:
    """Collects records, and writes them with each list of frequencies once."""

    def __init__(self, engine, version):
        self.notes = {}
        self._head = {"engine": engine, "version": version}
        self._names, self._configs = {}, {}

    def add(self, config, made):
        for module in made.get("modules", ()):
            key = json.dumps(module["inv_freq"])
            module["inv_freq"] = self._names.setdefault(key, f"f{len(self._names)}")
        self._configs[config] = made

    def write(self, path):
        lists = ",\n".join(f'"{name}": {text}' for text, name in self._names.items())
        configs = ",\n".join(map(_text_of, self._configs, self._configs.values()))
        head = json.dumps({**self._head, "notes": self.notes})[:-1]
        path.write_text(
            f'{head},\n"frequencies": {{\n{lists}\n}},\n"configs": {{\n{configs}\n}}}}\n'
        )


def _text_of(name, made):
    rest = {key: value for key, value in made.items() if key != "modules"}
    text = f"{json.dumps(name)}: {json.dumps(rest)[:-1]}"
    if "modules" not in made:
        return text + "}"
    lines = "".join(f"\n  {json.dumps(m)}," for m in made["modules"])
    return f'{text}, "modules": [{lines.removesuffix(",")}]}}'
