"""Finds every rotary embedding class of transformers, and its config class."""

import ast
import dataclasses
import functools
import importlib
import inspect
import pathlib
import re

import transformers
from torch import nn
from transformers import PreTrainedConfig

# Classes whose name says that they rotate; attention layers use one of them.
_NAME = re.compile(r"Rotary|Rope|RoPE")
# Config classes of rotary classes whose constructors name none.
_CONFIGS = {"Qwen3OmniMoeTalkerRotaryEmbedding": "Qwen3OmniMoeTalkerTextConfig"}
_ROOT = pathlib.Path(transformers.__file__).parent / "models"


@dataclasses.dataclass(frozen=True)
class RotaryClass:
    module: object  # the modeling module
    cls: type
    config_cls: type | None  # None: the class takes no config

    @property
    def name(self):
        return f"{self.module.__name__.split('.')[-2]}.{self.cls.__name__}"

    @property
    def source(self):
        """Where the class stands, without the version."""
        return (
            f"models/{self.module.__name__.split('.')[-2]}/{self.module.__name__.split('.')[-1]}.py"
        )

    def text(self):
        return inspect.getsource(self.cls)


def _config_class(module, cls):
    """The config that the class's functions are annotated with."""
    for node in ast.walk(ast.parse(inspect.getsource(cls))):
        if isinstance(node, ast.arg) and node.arg == "config" and node.annotation is not None:
            found = getattr(module, ast.unparse(node.annotation).strip("'\""), None)
            if inspect.isclass(found) and issubclass(found, PreTrainedConfig):
                return found
    return getattr(module, _CONFIGS.get(cls.__name__, ""), None)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a composite config holds a config: composite.keys[0].keys[1]..."""

    composite: type
    keys: tuple

    @property
    def name(self):
        return ".".join(self.keys)

    def put(self, config):
        """The composite with `config` in its place, and the config that it holds there."""
        values = config.to_dict()
        for key in reversed(self.keys):
            values = {key: values}
        composite = self.composite(**values)
        return composite, functools.reduce(getattr, self.keys, composite)


@functools.cache
def _holders():
    """[(class, key, class that it holds there)] of every config class."""
    found = []
    for path in sorted(_ROOT.glob("*/configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and issubclass(cls, PreTrainedConfig):
                found += [(cls, key, held) for key, held in cls.sub_configs.items()]
    return found


def places(config_cls):
    """The outermost composites that hold the class."""
    found = []
    for holder, key, held in _holders():
        if held is config_cls:
            around = places(holder) or [Place(holder, ())]
            found += [Place(p.composite, (*p.keys, key)) for p in around]
    return found


@functools.cache
def find():
    """Every rotary class, in the order of the module names."""
    classes = []
    for path in sorted(_ROOT.glob("*/modeling_*.py")):
        if not _NAME.search(path.read_text()):
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for name, cls in vars(module).items():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if (
                own
                and issubclass(cls, nn.Module)
                and _NAME.search(name)
                and "Attention" not in name
            ):
                classes.append(RotaryClass(module, cls, _config_class(module, cls)))
    return classes


def has_rope(config_cls):
    """Whether the config class states a rotary embedding."""
    try:
        config = config_cls()
    except Exception:  # some need another config
        return False
    return hasattr(config, "rope_parameters") or hasattr(config, "rope_theta")
