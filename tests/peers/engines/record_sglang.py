"""Records every rotary table that SGLang's own code makes of config.json files, on a CPU.

Usage: record_sglang.py [--only=REGEX] [--out=FOLDER]
REGEX: names of configs; default: all of the repository. compare.py reads what is written. Only
Python code runs: packages for GPUs are stubs.
"""

import contextlib
import logging
import sys
import tempfile
from importlib import metadata

import recorder
import stubs
import tables
import torch

# Packages that SGLang imports and that make no tables.
UNUSED = ("IPython", "cutlass", "decord", "gguf", "orjson", "quack", "sgl_kernel", "torchaudio")


def choose_the_cpu():
    """Without SGLang's switch for CPUs, with which its models take other ways than on a GPU."""
    from sglang.srt import utils

    for module in (utils, utils.common):
        module.get_device = lambda *_: "cpu"


def server_args(folder, length):
    from sglang.srt.server_args import ServerArgs

    return ServerArgs(model_path=str(folder), skip_tokenizer_init=True, load_format="dummy",
                      dtype="float32", context_length=length, device="cpu",
                      attention_backend="triton", disable_radix_cache=True)


def publish(args):
    """Makes the arguments those of this process."""
    with contextlib.suppress(ImportError):
        from sglang.srt import runtime_context

        rank = runtime_context.SpawnRanks(world_rank=0, gpu_id=0)
        return runtime_context.publish(args, role="weight_cache_daemon", ranks=rank)
    from sglang.srt.server_args import set_global_server_args_for_scheduler

    return set_global_server_args_for_scheduler(args)


def start_distributed(args, model_config):
    """One process, which every parallel layer of SGLang asks for."""
    from sglang.srt import distributed
    from sglang.srt.layers import dp_attention

    if not distributed.model_parallel_is_initialized():
        distributed.init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method="file://" + tempfile.mktemp(),
            backend="gloo",
        )
        distributed.initialize_model_parallel()
    with contextlib.suppress(TypeError):
        return dp_attention.initialize_dp_attention(args)
    return dp_attention.initialize_dp_attention(server_args=args, model_config=model_config)


class Sglang(recorder.Recorder):
    engine = "sglang"

    def __init__(self):
        super().__init__()
        stubs.install(UNUSED)
        stubs.accept_missing_operators(r"sgl_kernel\..*_cpu")
        choose_the_cpu()
        from sglang.srt.layers import rotary_embedding

        logging.disable(logging.WARNING)
        # The function that looks in its own module for get_rope has it from there.
        own = sys.modules[rotary_embedding.get_rope.__module__]
        self._cache = own._ROPE_DICT
        get_rope = tables.GetRope(own.get_rope)
        self.made = get_rope.made

        def get_rope_wrapper(*args, device=None, **kwargs):
            return get_rope(*args, **kwargs)  # as on a GPU

        for module in (own, rotary_embedding):  # before a model is imported
            module.get_rope, module.get_rope_wrapper = get_rope, get_rope_wrapper
        from sglang.srt.models import registry  # noqa: F401: imports every model, on the CPU

    def version(self):
        return metadata.version("sglang").split(".post")[0]

    def notes(self):
        return {"torch": torch.__version__, "transformers": metadata.version("transformers")}

    def modules_of(self, model):
        """Without those of Gemma 3's layers, which only a CPU with AMX uses (forward_cpu)."""
        found = super().modules_of(model)
        return [each for each in found if tables.is_of_transformers(each[0])] or found

    def build(self, folder, length):
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.model_loader.loader import _initialize_model

        self._cache.clear()
        args = server_args(folder, length)
        publish(args)
        config = ModelConfig.from_server_args(args)
        start_distributed(args, config)
        with torch.device("meta"):
            model = _initialize_model(config, LoadConfig(load_format="dummy"))
        return model, config.context_len


if __name__ == "__main__":
    sys.exit(Sglang().main())
