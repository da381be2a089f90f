"""vLLM's offload: the names of its files say how K is rotated only where a salt says so.

vLLM's own code makes each name, from the arguments of its engine and a request. No engine runs.
"""
import functools
import json

import pytest
from vllm_test import cache

import ropeserve as rs

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "num_hidden_layers": 28, "intermediate_size": 3072, "vocab_size": 151936,
         "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
         "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
TOKENS = list(range(100, 400))


def yarn(factor):
    return {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": factor,
                                "original_max_position_embeddings": 32768}}


# What config.json says besides, and hf_overrides. The last two are one rotation.
STARTS = {
    "factor 1": ({}, yarn(1.0)),
    "factor 2": ({}, yarn(2.0)),
    "factor 2, old spelling": ({"rope_scaling": {
        "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768}}, {}),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The config of an engine that was started so; all have one model folder. With a tag it was
    started with a link to the folder, whose name ends in the tag."""
    from vllm.engine.arg_utils import EngineArgs
    model = tmp_path_factory.mktemp("models") / "Qwen3-0.6B"
    model.mkdir()
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
                                              "cpu_bytes_to_use": 1 << 30}}

    @functools.cache
    def made(name, tag=None):
        written, overrides = STARTS[name]
        (model / "config.json").write_text(json.dumps({**QWEN3, **written}))
        link = model if tag is None else model.with_name(f"Qwen3-0.6B-{tag}")
        if not link.exists():
            link.symlink_to(model)
        return EngineArgs(model=str(link), skip_tokenizer_init=True, dtype="bfloat16",
                          max_model_len=8192, hf_overrides=overrides,
                          kv_transfer_config=transfer).create_engine_config()
    return made


def file_mapper(config, root_dir="/kv"):
    """As FileSystemTierManager makes it."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        build_offloading_config)
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.file_mapper import FileMapper
    layer = FullAttentionSpec(block_size=config.cache_config.block_size, num_kv_heads=8,
                              head_size=128, dtype=torch.bfloat16)
    layers = {f"model.layers.{i}.self_attn.attn": layer for i in range(28)}
    config.cache_config.kv_cache_layout = "LBNHC"  # an engine asks its workers
    blocks, = get_kv_cache_configs(config, [layers], [8 << 30])
    spec = OffloadingSpecFactory.create_spec(build_offloading_config(config, blocks))
    return FileMapper.from_offloading_spec(
        root_dir=root_dir, offloading_spec=spec, blocks_per_file=spec.blocks_per_chunk,
        parallel_agnostic=True)


def block_hashes(config, salt):
    """As EngineCore makes them of what the OpenAI server takes."""
    from vllm import SamplingParams
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.request import Request
    asked = CompletionRequest(prompt=TOKENS, cache_salt=salt)
    core = EngineCoreRequest(
        request_id="1", prompt_token_ids=asked.prompt, mm_features=None,
        sampling_params=SamplingParams(max_tokens=1), pooling_params=None, arrival_time=0.0,
        lora_request=None, cache_salt=asked.cache_salt, data_parallel_rank=None)
    hash_of = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(hash_of)
    hasher = get_request_block_hasher(config.cache_config.block_size, hash_of)
    return Request.from_engine_core_request(core, hasher).block_hashes


def file_names(config, salt=None, **mapper):
    """The files of the request's blocks."""
    from vllm.v1.kv_offload.base import make_offload_key
    names = file_mapper(config, **mapper)
    return [names.get_file_name(make_offload_key(each, 0)) for each in block_hashes(config, salt)]


def fingerprint(config):
    """Of what the engine loads, as the overrides left it."""
    return str(rs.fingerprint(config.model_config.hf_config, engine="vllm@0.32.0", dtype="bf16",
                              max_model_len=config.model_config.max_model_len))


def table(config):
    return cache(config.model_config.hf_config.rope_parameters)[:8192]


def test_the_rotations_are_two(start):
    one, two, other = (table(start(name)) for name in STARTS)
    assert not torch.equal(one, two)
    assert torch.equal(two, other)


def test_without_a_salt_k_of_another_rotation_has_the_same_files(start):
    one, two = file_names(start("factor 1")), file_names(start("factor 2"))
    print(f"\nwithout a salt, both factors: {one[0]}")
    assert len(one) == len(TOKENS) // start("factor 1").cache_config.block_size > 1
    assert one == two


def test_with_the_fingerprint_as_salt_it_has_others(start):
    made = {name: file_names(start(name), fingerprint(start(name))) for name in STARTS}
    for name, files in made.items():
        print(f"\n{name}: {files[0]}", end="")
    one, two, other = made.values()
    assert not set(one) & set(two)  # the salt is in the first block, and every other follows it
    assert two == other
    assert one[0].split("/")[:3] == two[0].split("/")[:3]  # the mapper's part; the hash differs


def test_with_the_fingerprint_as_folder_it_has_others(start):
    one, two, other = (file_names(start(name), root_dir=f"/kv/{fingerprint(start(name))}")
                       for name in STARTS)
    assert not set(one) & set(two)
    assert two == other


def test_with_the_fingerprint_in_the_models_name_it_has_others(start):
    one, two, other = (file_names(start(name, fingerprint(start(name)))) for name in STARTS)
    assert not set(one) & set(two)
    assert two == other


def test_the_handshake_of_nixl_knows_the_models_name_only(start):
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
        compute_nixl_compatibility_hash)

    def hash_of(config):
        return compute_nixl_compatibility_hash(config, "FLASH_ATTN", transfer_mode="pull")
    assert hash_of(start("factor 1")) == hash_of(start("factor 2"))
    one, two, other = (hash_of(start(name, fingerprint(start(name)))) for name in STARTS)
    assert one != two == other


def test_the_config_alone_gives_the_engines_fingerprint(start):
    """A script that starts engines knows what one will compute."""
    for name, (written, overrides) in STARTS.items():
        alone = rs.fingerprint({**QWEN3, **written, **overrides}, engine="vllm@0.32.0",
                               dtype="bf16")
        assert str(alone) == fingerprint(start(name))
