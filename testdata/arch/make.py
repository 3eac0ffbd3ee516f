"""Make small random models of every supported architecture and their reference logits with PyPI transformers.

Tests only read what this writes; nothing here runs at build or test time. README.md describes the files.

    pip install torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    python make.py OUTDIR                       # the models of MODELS below
    python make.py OUTDIR NAME...               # the named ones; index.json keeps the others
    python make.py OUTDIR --random SEED COUNT   # COUNT models of randomly drawn architecture and configuration

The logits are float32 arithmetic on the stored (rounded) weights, eager attention, one thread, one forward
without a cache. Everything follows from the seeds; a seed that gives near ties in a router is passed over.
"""

import argparse
import copy
import json
import math
import os
import random
import re
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, logging
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LENGTHS = (1, 7, 33, 130)
ROW_STEP = 10  # of the longest prompt every tenth position is kept, and the last
MARGIN = 1e-4  # routers: smallest allowed distance of a decision from its other outcome
CONDITION = 2e-4  # logits: largest allowed difference between float32 and float64 linear algebra
SENSITIVE = 1e-2  # logits: smallest change that leaving out a feature must make
# The two forms of GELU differ by 5e-4 at most, so a model cannot tell them apart by more than a little.
SENSITIVE_GELU = 1.5e-3
EAGER = dict(attn_implementation="eager", experts_implementation="eager")

SHAPE = dict(
    vocab_size=96, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None,
)
ROPE_SHAPE = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
MOE_SHAPE = dict(intermediate_size=20)


def rope(kind, **keys):
    return dict(rope_parameters=dict(rope_type=kind, **{"rope_theta": 10000.0, **keys}))


def factors(n, top, step):
    """n growing longrope factors from 1 to about top."""
    return [round(1 + (top - 1) * (i / max(n - 1, 1)) ** step, 3) for i in range(n)]


# name: (model_type, dtype, config keys). Keys with an underscore are for this script:
# _form: "fused" stores experts as 3-D tensors instead of one matrix per expert; _shard: bytes per safetensors shard;
# _norms: another dtype for the norms; _long: phimoe reference with long_factor beyond the original length;
# _lean: drop from config.json every key that equals the class default.
MODELS = {
    "llama-plain": ("llama", "float32", dict()),
    "llama-tied": ("llama", "bfloat16", dict(tie_word_embeddings=True)),
    "llama-attention-bias": ("llama", "float16", dict(attention_bias=True)),
    "llama-mlp-bias": ("llama", "bfloat16", dict(mlp_bias=True, _norms="float32")),
    "llama-head-dim": ("llama", "float16", dict(hidden_size=40, head_dim=14, intermediate_size=50)),
    "llama-mha": ("llama", "bfloat16", dict(num_key_value_heads=4, num_hidden_layers=3, rms_norm_eps=1e-3)),
    "llama-mqa": ("llama", "float16", dict(num_key_value_heads=1, _shard=20000)),
    "llama-gelu": ("llama", "float16", dict(hidden_act="gelu")),
    "llama-gelu-tanh": ("llama", "float32", dict(hidden_act="gelu_pytorch_tanh")),
    "llama-linear": ("llama", "float16", dict(**ROPE_SHAPE, **rope("linear", factor=4.0, rope_theta=5000.0))),
    "llama-dynamic-64": ("llama", "float16", dict(**ROPE_SHAPE, max_position_embeddings=64, **rope("dynamic", factor=4.0))),
    "llama-dynamic-256": ("llama", "float16", dict(**ROPE_SHAPE, **rope("dynamic", factor=4.0, rope_theta=3000.0))),
    "llama-llama3": ("llama", "bfloat16", dict(**ROPE_SHAPE, **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama-yarn": ("llama", "float16", dict(**ROPE_SHAPE, **rope("yarn", factor=4.0, original_max_position_embeddings=64))),
    "llama-yarn-mscale": ("llama", "float16", dict(**ROPE_SHAPE, **rope("yarn", factor=8.0, original_max_position_embeddings=128, mscale=1.0, mscale_all_dim=0.3, beta_fast=4))),
    "llama-yarn-no-truncate": ("llama", "float16", dict(**ROPE_SHAPE, **rope("yarn", factor=16.0, original_max_position_embeddings=64, truncate=False, beta_fast=8))),
    "llama-yarn-attention-factor": ("llama", "float16", dict(**ROPE_SHAPE, max_position_embeddings=640, **rope("yarn", factor=2.5, original_max_position_embeddings=256, attention_factor=1.3, beta_fast=8, beta_slow=2))),
    "llama-longrope": ("llama", "float16", dict(**ROPE_SHAPE, **rope("longrope", original_max_position_embeddings=64, short_factor=factors(8, 1.5, 1), long_factor=factors(8, 12, 2)))),
    "llama-longrope-factor": ("llama", "float16", dict(**ROPE_SHAPE, **rope("longrope", factor=6.0, attention_factor=1.25, original_max_position_embeddings=32, short_factor=factors(8, 1.3, 2), long_factor=factors(8, 6, 1)))),
    "mistral-window": ("mistral", "bfloat16", dict(sliding_window=16, num_hidden_layers=3)),
    "mistral-full": ("mistral", "float16", dict(sliding_window=None, head_dim=12, **rope("default", rope_theta=1000000.0))),
    "qwen2-tied": ("qwen2", "bfloat16", dict(tie_word_embeddings=True, **rope("default", rope_theta=1000000.0))),
    "qwen2-window": ("qwen2", "float16", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1, num_hidden_layers=3)),
    "qwen2-layer-types": ("qwen2", "bfloat16", dict(use_sliding_window=True, sliding_window=9, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"])),
    "qwen2-yarn": ("qwen2", "float16", dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=2, **rope("yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=1000000.0))),
    "qwen3-tied": ("qwen3", "bfloat16", dict(tie_word_embeddings=True, hidden_size=40, head_dim=16, **rope("default", rope_theta=1000000.0))),
    "qwen3-bias-window": ("qwen3", "float16", dict(attention_bias=True, head_dim=12, num_hidden_layers=3, use_sliding_window=True, sliding_window=12, layer_types=["full_attention", "sliding_attention", "full_attention"])),
    "qwen3-lean": ("qwen3", "bfloat16", dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=128, num_hidden_layers=1, _lean=True)),
    "gemma-tied": ("gemma", "bfloat16", dict(num_key_value_heads=1, head_dim=12)),
    "gemma2-caps": ("gemma2", "float16", dict(head_dim=12, query_pre_attn_scalar=20, attn_logit_softcapping=4.0, final_logit_softcapping=6.0, sliding_window=12, num_hidden_layers=3)),
    "gemma2-lean": ("gemma2", "bfloat16", dict(head_dim=16, _lean=True)),
    "phi-partial": ("phi", "float16", dict(num_attention_heads=2, num_key_value_heads=2, **rope("default", partial_rotary_factor=0.375))),
    "phi-qk-layernorm": ("phi", "bfloat16", dict(num_attention_heads=2, num_key_value_heads=1, qk_layernorm=True)),
    "phi3-window": ("phi3", "bfloat16", dict(sliding_window=24, tie_word_embeddings=True)),
    "phi3-longrope": ("phi3", "bfloat16", dict(num_attention_heads=2, num_key_value_heads=1, original_max_position_embeddings=64, **rope("longrope", partial_rotary_factor=0.75, short_factor=factors(6, 1.4, 1), long_factor=factors(6, 9, 2)))),
    "starcoder2-window": ("starcoder2", "bfloat16", dict(sliding_window=18, intermediate_size=60)),
    "starcoder2-no-bias": ("starcoder2", "float16", dict(use_bias=False, tie_word_embeddings=False, norm_epsilon=1e-2)),
    "olmo2-plain": ("olmo2", "float16", dict(num_hidden_layers=3, **rope("default", rope_theta=500000.0))),
    "olmo2-bias": ("olmo2", "bfloat16", dict(attention_bias=True, num_key_value_heads=4)),
    "mixtral-full": ("mixtral", "bfloat16", dict(**MOE_SHAPE, num_local_experts=5, num_experts_per_tok=2, _lean=True, _shard=24000)),
    "mixtral-window-fused": ("mixtral", "float16", dict(**MOE_SHAPE, head_dim=12, num_local_experts=4, num_experts_per_tok=3, sliding_window=16, _form="fused", **rope("default", rope_theta=20000.0))),
    "qwen2-moe-shared": ("qwen2_moe", "bfloat16", dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=28, norm_topk_prob=False)),
    "qwen2-moe-dense-layers-fused": ("qwen2_moe", "float16", dict(num_hidden_layers=5, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=14, shared_expert_intermediate_size=18, intermediate_size=30, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[3], use_sliding_window=True, sliding_window=14, max_window_layers=3, _form="fused")),
    "qwen3-moe-fused": ("qwen3_moe", "bfloat16", dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=14, head_dim=12, norm_topk_prob=True, _form="fused")),
    "qwen3-moe-dense-layers": ("qwen3_moe", "float16", dict(num_hidden_layers=4, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12, intermediate_size=30, norm_topk_prob=False, mlp_only_layers=[1], decoder_sparse_step=2, attention_bias=True, use_sliding_window=True, sliding_window=25)),
    "olmoe-plain": ("olmoe", "bfloat16", dict(**MOE_SHAPE, num_experts=7, num_experts_per_tok=3, num_key_value_heads=4)),
    "olmoe-clip-fused": ("olmoe", "float16", dict(**MOE_SHAPE, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True, clip_qkv=1.2, _form="fused")),
    "phimoe-default": ("phimoe", "bfloat16", dict(**MOE_SHAPE, num_local_experts=5, router_jitter_noise=0.2, attention_bias=True, lm_head_bias=True, **rope("default"))),
    "phimoe-longrope-fused": ("phimoe", "float16", dict(**MOE_SHAPE, num_attention_heads=2, num_key_value_heads=2, num_local_experts=4, router_jitter_noise=0.1, sliding_window=40, _form="fused", **rope("longrope", original_max_position_embeddings=64, short_mscale=1.2, long_mscale=1.5, short_factor=factors(8, 4, 1), long_factor=factors(8, 4, 1)))),
    "phimoe-longrope-long": ("phimoe", "float16", dict(**MOE_SHAPE, num_attention_heads=2, num_key_value_heads=2, num_local_experts=4, attention_bias=True, lm_head_bias=True, _long=True, **rope("longrope", original_max_position_embeddings=64, short_mscale=1.1, long_mscale=1.3, short_factor=factors(8, 1.5, 1), long_factor=factors(8, 10, 2)))),
}


# --- weights ---------------------------------------------------------------------------------------------------


def fill(model, seed):
    """Random weights for which every part matters: attention far from uniform, gains about 1, logits of a few units."""
    generator = torch.Generator().manual_seed(seed)
    cfg = model.config
    centred = cfg.model_type in ("gemma", "gemma2")  # their gain is 1 + weight
    tied = cfg.tie_word_embeddings
    for name, p in sorted(model.named_parameters()):
        z = torch.randn(p.shape, generator=generator)
        if name.endswith("bias"):
            std, mean = 0.4, 0.0
        elif "norm" in name:
            std, mean = 0.3, 0.0 if centred else 1.0
            if re.search(r"\.[qk]_(layer)?norm\.", name):
                mean = 1.4
        elif "embed_tokens" in name:
            std, mean = (2 / math.sqrt(cfg.hidden_size) if tied or centred else 1.0), 0.0
        else:
            gain = 1.0
            if re.search(r"\.[qk]_proj\.|\.qkv_proj\.", name):
                gain = 1.6
            elif re.search(r"gate|router|\.fc1\.|\.c_fc\.", name):  # routers and the input of the activation
                gain = 1.6
            elif re.search(r"down_proj|\.fc2\.|\.c_proj\.|lm_head", name):
                gain = 2.0
            std, mean = gain / math.sqrt(p.shape[-1]), 0.0
        p.data = mean + std * z


def new_model(cfg, seed):
    """A float32 model whose weights are those that its stored form will hold."""
    keys = {k: v for k, v in cfg["keys"].items() if not k.startswith("_")}
    keys = {**SHAPE, **keys} if not cfg.get("random") else keys
    model = blank(config_of(cfg["arch"], keys))
    fill(model, seed)
    return model


def blank(config):
    return AutoModelForCausalLM.from_config(config, **EAGER).float().eval()


def config_of(arch, keys):
    return AutoConfig.for_model(arch, **{k: v for k, v in copy.deepcopy(keys).items() if k != "model_type"})


# --- running ---------------------------------------------------------------------------------------------------


def load(directory):
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True, **EAGER
    )
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        raise SystemExit(f"{directory}: transformers does not load all weights: {wrong}")
    return model.eval()


def prompts(vocab, seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    out = {}
    for n in LENGTHS:
        ids = torch.randint(0, vocab, (n,), generator=generator)
        if n > 1:
            ids[0], ids[-1] = 0, vocab - 1
        out[n] = ids
    return out


@torch.no_grad()
def logits(model, ids, long=False, margin=None):
    """[T,V] of one fresh forward: dynamic rotary frequencies of an earlier call must not leak into this one."""
    model = copy.deepcopy(model)
    if long:
        # 5.23 takes phimoe's frequencies from short_factor at any length; the published model uses long_factor beyond
        # the original length, as transformers did up to 4.x. This restores it.
        model.model.rotary_emb.rope_init_fn = lambda config: ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=len(ids))
    if margin:
        for module in model.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(margin.see)
    return model(ids[None], use_cache=False).logits[0]


class Margin:
    """The smallest distance of any router decision from its other outcome."""

    value = math.inf

    def see(self, router, _, output):
        scores = output[0]
        top = scores.sort(dim=-1, descending=True).values
        k = router.top_k
        if type(router).__name__.startswith("Phimoe"):
            k = 2
            self.lower(top[:, 0] - top[:, 1])
            for best in (top[:, :1], top[:, 1:2]):
                self.lower(((best - scores) / scores.abs().maximum(best) - 2 * router.router_jitter_noise).abs())
        if k < scores.shape[-1]:
            self.lower(top[:, k - 1] - top[:, k])

    def lower(self, distances):
        self.value = min(self.value, float(distances.min()))


# --- what each feature is worth --------------------------------------------------------------------------------


def ablations(model):
    """(label, config changes, edit of the model or None): each leaves out or changes one feature."""
    c = model.config
    keys = c.to_dict()
    out = []

    def with_rope(label, **changes):
        p = {**keys["rope_parameters"], **changes}
        out.append((label, dict(rope_parameters={k: v for k, v in p.items() if v is not None}), None))

    r = keys["rope_parameters"]
    kind = r["rope_type"]
    if kind != "default" and not (kind == "dynamic" and c.max_position_embeddings >= max(LENGTHS)):
        plain = {k: r[k] for k in ("rope_theta", "partial_rotary_factor") if k in r}
        out.append((f"rope {kind}", dict(rope_parameters=dict(rope_type="default", **plain)), None))
        if c.model_type != "phimoe":
            for key in ("attention_factor", "truncate", "beta_fast", "beta_slow", "mscale"):
                if r.get(key) is not None:
                    with_rope(f"rope {key}", **{key: None})
        if kind == "longrope":
            with_rope("rope short_factor", short_factor=[1.0] * len(r["short_factor"]))
            if r["long_factor"] != r["short_factor"]:
                with_rope("rope long_factor", long_factor=r["short_factor"])
        for key in ("short_mscale", "long_mscale"):
            if key in r:
                with_rope(f"rope {key}", **{key: 1.0})
    if r["rope_theta"] != 10000:
        with_rope("rope_theta", rope_theta=10000.0)
    if r.get("partial_rotary_factor", 1.0) != 1 and kind == "default":
        with_rope("partial_rotary_factor", partial_rotary_factor=1.0)

    window = getattr(c, "sliding_window", None)
    if window and window < max(LENGTHS):
        types = getattr(c, "layer_types", None)
        if c.model_type == "qwen3_moe":
            out.append(("sliding_window off", dict(use_sliding_window=False), None))
        elif types is None:
            out.append(("sliding_window off", dict(sliding_window=None), None))
        else:
            swap = {"full_attention": "sliding_attention", "sliding_attention": "full_attention"}
            out.append(("sliding_window off", dict(layer_types=["full_attention"] * len(types)), None))
            if "full_attention" in types:
                out.append(("layer_types swapped", dict(layer_types=[swap[t] for t in types]), None))
        out.append(("sliding_window one longer", dict(sliding_window=window + 1), None))

    act = "hidden_activation" if c.model_type == "gemma2" else "hidden_act"
    other = {"silu": "gelu", "gelu": "gelu_pytorch_tanh"}.get(keys[act], "gelu")
    if (c.model_type, other) != ("gemma", "gelu"):
        out.append((f"{keys[act]} as {other}", {act: other}, None))
    if getattr(c, "final_logit_softcapping", None) and c.final_logit_softcapping < 20:
        out.append(("final_logit_softcapping", dict(final_logit_softcapping=None), None))
        out.append(("attn_logit_softcapping", dict(attn_logit_softcapping=None), None))
    if getattr(c, "query_pre_attn_scalar", None):
        out.append(("query_pre_attn_scalar", dict(query_pre_attn_scalar=c.head_dim), None))
    if getattr(c, "clip_qkv", None):
        out.append(("clip_qkv", dict(clip_qkv=None), None))
    if hasattr(c, "norm_topk_prob"):
        out.append(("norm_topk_prob", dict(norm_topk_prob=not c.norm_topk_prob), None))
    if hasattr(c, "num_experts_per_tok") and c.model_type != "phimoe":
        out.append(("num_experts_per_tok", dict(num_experts_per_tok=c.num_experts_per_tok - 1), None))
    if c.model_type == "phimoe" and c.router_jitter_noise > 0.05:
        out.append(("router_jitter_noise", dict(router_jitter_noise=0.01), None))
    for eps in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon"):
        if getattr(c, eps, 0) >= 1e-4:
            out.append((eps, {eps: 1e-6}, None))

    def set_all(pattern, value):
        def edit(m):
            for name, p in m.named_parameters():
                if re.search(pattern, name):
                    p.data = torch.full_like(p, value)
        return edit

    def unscale(m):
        m.model.embed_tokens.embed_scale.fill_(1.0)

    kinds = sorted({re.sub(r"layers\.\d+\.", "", n.removeprefix("model.")) for n, _ in model.named_parameters()})
    for part in kinds:
        pattern = re.escape(part) + "$"
        if part.endswith("bias"):
            out.append((part, {}, set_all(pattern, 0.0)))
        elif "norm" in part:
            if part.startswith("norm"):
                pattern = r"^model\.norm\.weight$"
            out.append((part, {}, set_all(pattern, 0.0 if c.model_type in ("gemma", "gemma2") else 1.0)))
        elif "shared_expert" in part and ("gate.weight" in part or "down_proj" in part):
            out.append((part, {}, set_all(pattern, 0.0)))
    if c.model_type in ("gemma", "gemma2"):
        out.append(("embedding scale", {}, unscale))
    return out


def worth(model, ids, reference, long):
    """{label: largest change of any logit when the feature is left out}"""
    out = {}
    for label, changes, edit in ablations(model):
        m = model
        if changes:
            keys = {k: v for k, v in model.config.to_dict().items() if k not in ("dtype", "architectures")}
            m = blank(config_of(model.config.model_type, {**keys, **changes}))
            m.load_state_dict(model.state_dict())
        else:
            m = copy.deepcopy(model)
        if edit:
            edit(m)
        long_now = long and m.config.rope_parameters["rope_type"] == "longrope"
        out[label] = max(float((logits(m, ids[n], long_now) - reference[n]).abs().max()) for n in LENGTHS[1:])
    return out


# --- files -----------------------------------------------------------------------------------------------------


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2, sort_keys=True)
        f.write("\n")


def old_spelling(keys, type_key):
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling at the top, torch_dtype."""
    keys = copy.deepcopy(keys)
    r = keys.pop("rope_parameters", None)
    if r is not None:
        for key in ("rope_theta", "partial_rotary_factor"):
            if key in r:
                keys[key] = r.pop(key)
        kind = r.pop("rope_type")
        scaled = kind != "default"
        if scaled and keys["model_type"] == "phi3":
            if type_key == "type":
                kind = "su"  # the first name of longrope; 5.23 reads it only with the original length next to it
            else:
                del r["original_max_position_embeddings"]
        keys["rope_scaling"] = {type_key: kind, **r} if scaled else None
    keys["torch_dtype"] = keys.pop("dtype")
    keys["transformers_version"] = "4.57.0"
    if keys.get("head_dim", 0) is None:
        del keys["head_dim"]
    derived = config_of(keys["model_type"], {k: v for k, v in keys.items() if k not in ("layer_types", "torch_dtype")})
    if "layer_types" in keys and derived.layer_types == keys["layer_types"]:
        del keys["layer_types"]
    if keys["model_type"] == "gemma" and derived.hidden_act == "gelu_pytorch_tanh":
        keys["hidden_act"], keys["hidden_activation"] = "gelu", None  # as published; it means the tanh form
    return keys


def lean(keys, drop):
    """keys without those that drop picks among the ones equal to the class default."""
    default = config_of(keys["model_type"], {}).to_dict()
    out = dict(keys)
    for k in sorted(keys):
        if k in default and default[k] == keys[k] and k not in ("model_type", "architectures", "dtype", "layer_types") and drop(k):
            del out[k]
    if "layer_types" in keys:
        without = {k: v for k, v in out.items() if k not in ("layer_types", "dtype")}
        if config_of(keys["model_type"], without).layer_types == keys["layer_types"] and drop("layer_types"):
            del out["layer_types"]
    return out


def store(model, directory, dtype, options):
    m = copy.deepcopy(model).to(getattr(torch, dtype))
    if options.get("_norms"):
        for name, p in m.named_parameters():
            if "norm" in name:
                p.data = p.data.to(getattr(torch, options["_norms"]))
    extra = {}
    if options.get("_shard"):
        extra["max_shard_size"] = options["_shard"]
    if options.get("_form") == "fused":
        extra["save_original_format"] = False
    m.save_pretrained(directory, **extra)
    os.remove(os.path.join(directory, "generation_config.json"))
    with open(os.path.join(directory, "config.json")) as f:
        keys = json.load(f)
    if keys.get("dtype") != dtype:
        raise SystemExit(f"{directory}: dtype {keys.get('dtype')} was written, want {dtype}")
    return keys


def make(name, spec, out, strict):
    """One model directory; returns its entry of index.json."""
    options = {k: v for k, v in spec["keys"].items() if k.startswith("_")}
    directory = os.path.join(out, name)
    for attempt in range(200):
        seed = spec["seed"] + attempt
        shutil.rmtree(directory, ignore_errors=True)
        keys = store(new_model(spec, seed), directory, spec["dtype"], options)
        model = load(directory)
        ids = prompts(model.config.vocab_size, seed)
        long = bool(options.get("_long"))
        margin = Margin()
        reference = {n: logits(model, ids[n], long, margin) for n in LENGTHS}
        if margin.value > MARGIN:
            break
    else:
        raise SystemExit(f"{name}: no seed without near ties in the routers")

    condition = max(float((logits(model.double(), ids[n], long) - reference[n]).abs().max()) for n in LENGTHS)
    model = model.float()
    if condition > CONDITION:
        raise SystemExit(f"{name}: float32 and float64 differ by {condition:.2e}, want <= {CONDITION}")
    if not all(bool(r.isfinite().all()) for r in reference.values()):
        raise SystemExit(f"{name}: logits are not finite")

    stored = {}
    for n in LENGTHS:
        rows = sorted({*range(0, n, ROW_STEP), n - 1}) if n == max(LENGTHS) else list(range(n))
        stored[f"ids_{n}"] = ids[n].to(torch.int32)
        stored[f"positions_{n}"] = torch.tensor(rows, dtype=torch.int32)
        stored[f"logits_{n}"] = reference[n][rows].contiguous()
    save_file(stored, os.path.join(directory, "logits.safetensors"))

    configs = {"config.json": keys}
    if options.get("_lean"):
        configs["config.json"] = lean(keys, lambda _: True)
    elif "_drop" in options:
        drawn = random.Random(options["_drop"])
        configs["config.json"] = lean(keys, lambda _: drawn.random() < 0.5)
    if options.get("_spelling"):
        configs["config.json"] = old_spelling(configs["config.json"], options["_spelling"])
    elif not options.get("_lean") and strict:
        configs["config.old.json"] = old_spelling(keys, "rope_type")
        if keys["rope_parameters"]["rope_type"] != "default":
            configs["config.type.json"] = old_spelling(keys, "type")
    for file, value in configs.items():
        write_json(os.path.join(directory, file), value)
        if value != keys:
            same_logits(directory, file, ids, reference, long)

    features = worth(model, ids, reference, long) if strict else {}
    for label, change in features.items():
        least = SENSITIVE_GELU if re.fullmatch("gelu.* as gelu.*", label) else SENSITIVE
        if change < least:
            print(f"WEAK {name}: {label}: {change:.2e}", file=sys.stderr)
            global weak
            weak += 1
    size = sum(os.path.getsize(os.path.join(directory, f)) for f in os.listdir(directory))
    top = max(float(r.abs().max()) for r in reference.values())
    spread = float(reference[max(LENGTHS)].std())
    print(f"{name:32} {spec['arch']:10} {spec['dtype']:8} seed {seed:<5} {size / 1024:6.1f} KiB  logits std {spread:.2f} max {top:.1f}"
          f"  f64 {condition:.1e}  margin {margin.value:.1e}")
    for label, change in features.items():
        print(f"    {label:44} {change:8.3f}")
    return dict(
        name=name, model_type=spec["arch"], dtype=spec["dtype"], configs=sorted(configs),
        form=options.get("_form", "per-expert") if spec["arch"] in MOE else "",
        shards=sum(f.endswith(".safetensors") for f in os.listdir(directory)) - 1,
        features={k: float(f"{v:.2g}") for k, v in features.items()},
    )


MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe")
weak = 0


def same_logits(directory, file, ids, reference, long):
    """The spelling in file must load to the same model as the one save_pretrained wrote."""
    with tempfile.TemporaryDirectory() as d:
        for f in os.listdir(directory):
            if f.startswith("model"):
                os.symlink(os.path.abspath(os.path.join(directory, f)), os.path.join(d, f))
        shutil.copy(os.path.join(directory, file), os.path.join(d, "config.json"))
        model = load(d)
        for n in LENGTHS:
            if not torch.equal(logits(model, ids[n], long), reference[n]):
                raise SystemExit(f"{directory}/{file}: loads to other logits at {n} tokens")


# --- random models ---------------------------------------------------------------------------------------------


def draw(rng):
    """A random architecture and configuration: every feature, odd shapes."""
    arch = rng.choice(["llama", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "starcoder2", "olmo2", *MOE])
    heads = rng.randint(1, 8)
    kv = rng.choice([d for d in range(1, heads + 1) if heads % d == 0])
    layers = rng.randint(1, 7)
    own_head_dim = arch in ("llama", "mistral", "qwen3", "gemma", "gemma2", "mixtral", "qwen3_moe") and (rng.random() < 0.6 or arch in ("qwen3", "gemma", "gemma2"))
    head_dim = 2 * rng.randint(2, 32 if heads <= 4 else 12)
    if not own_head_dim:
        hidden = heads * head_dim
    elif arch in ("llama", "gemma2"):
        hidden = heads * rng.randint(max(1, 18 // heads), max(2, 120 // heads))
    else:
        hidden = rng.randint(17, 120)
    k = dict(
        vocab_size=rng.randint(50, 300), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, intermediate_size=rng.randint(9, 140 if arch not in MOE else 40),
        bos_token_id=1, eos_token_id=2, pad_token_id=rng.choice([None, 0]), tie_word_embeddings=rng.random() < 0.4,
    )
    if own_head_dim:
        k["head_dim"] = head_dim
    k["norm_epsilon" if arch == "starcoder2" else "layer_norm_eps" if arch == "phi" else "rms_norm_eps"] = rng.choice([1e-6, 1e-5, 1e-3])
    if arch == "gemma2":
        k["hidden_activation"] = rng.choice(["gelu_pytorch_tanh", "gelu", "silu"])
    else:
        k["hidden_act"] = rng.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh", "gelu_new"])
    if arch in ("llama", "qwen3", "gemma", "gemma2", "olmo2", "qwen3_moe", "olmoe", "phimoe"):
        k["attention_bias"] = rng.random() < 0.4
    if arch == "llama":
        k["mlp_bias"] = rng.random() < 0.4
    if arch == "starcoder2":
        k["use_bias"] = rng.random() < 0.6
    if arch == "phi":
        k["qk_layernorm"] = rng.random() < 0.4
    if arch == "phimoe":
        k["lm_head_bias"] = rng.random() < 0.5
        k["router_jitter_noise"] = rng.choice([0.01, 0.1, 0.3])

    window = rng.choice([1, 3, rng.randint(5, 40), rng.randint(41, 140)])
    if arch in ("mistral", "phi3", "starcoder2", "mixtral", "phimoe"):
        k["sliding_window"] = window if rng.random() < 0.5 else None
    elif arch == "gemma2":
        k["sliding_window"] = window
    elif arch in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe") and rng.random() < 0.6:
        k.update(use_sliding_window=True, sliding_window=window, max_window_layers=rng.randint(0, layers))
    if arch in ("gemma2", "qwen2", "qwen3", "qwen2_moe") and rng.random() < 0.4 and k.get("sliding_window"):
        k["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    if arch == "gemma2":
        k["query_pre_attn_scalar"] = rng.choice([head_dim, rng.randint(4, 64)])
        k["attn_logit_softcapping"] = rng.choice([None, 3.0, 50.0])
        k["final_logit_softcapping"] = rng.choice([None, 5.0, 30.0])

    if arch in MOE:
        experts = rng.randint(2, 17)
        k["num_local_experts" if arch in ("mixtral", "phimoe") else "num_experts"] = experts
        k["num_experts_per_tok"] = 2 if arch == "phimoe" else rng.randint(1, min(4, experts))
        if arch in ("qwen2_moe", "qwen3_moe"):
            k["moe_intermediate_size"] = rng.randint(5, 40)
            k["decoder_sparse_step"] = rng.choice([1, 1, 2, 3])
            k["mlp_only_layers"] = sorted(rng.sample(range(layers), rng.choice([0, 0, min(1, layers), min(2, layers)])))
        if arch == "qwen2_moe":
            k["shared_expert_intermediate_size"] = rng.randint(5, 60)
            k["qkv_bias"] = rng.random() < 0.7
        if arch in ("qwen2_moe", "qwen3_moe", "olmoe"):
            k["norm_topk_prob"] = rng.random() < 0.5
        if arch == "olmoe":
            k["clip_qkv"] = rng.choice([None, 0.8, 2.0])
        k["_form"] = rng.choice(["per-expert", "fused"])

    k.update(draw_rope(rng, arch, k, head_dim if own_head_dim else hidden // heads))
    if rng.random() < 0.4:
        k["_spelling"] = rng.choice(["rope_type", "type"])
    if rng.random() < 0.3:
        k["_drop"] = rng.randint(0, 1 << 30)
    if rng.random() < 0.1:
        k["_shard"] = rng.choice([20000, 60000])
    dtype = rng.choice(["float32", "float16", "bfloat16"])
    return arch, dtype, k


def draw_rope(rng, arch, k, head_dim):
    theta = rng.choice([500.0, 10000.0, 1000000.0])
    kinds = ["default", "default", "linear", "dynamic", "yarn", "longrope", "llama3"]
    if arch in ("phi3", "phimoe"):
        kinds = ["default", "longrope"]
    kind = rng.choice(kinds)
    if kind in ("dynamic", "yarn", "llama3") and (head_dim < 6 or (arch == "mixtral" and "head_dim" not in k)):
        kind = "linear"
    if kind == "longrope" and arch == "mixtral" and "head_dim" not in k:
        kind = "default"  # transformers divides by a null head_dim there
    r = dict(rope_type=kind, rope_theta=theta)
    rotary = head_dim
    if arch in ("phi", "phi3"):
        choices = [p for p in (0.25, 0.4, 0.5, 0.75, 1.0) if int(head_dim * p) % 2 == 0 and int(head_dim * p) >= 4]
        r["partial_rotary_factor"] = rng.choice(choices)
        rotary = int(head_dim * r["partial_rotary_factor"])
    out = dict(max_position_embeddings=rng.choice([64, 100, 256, 4096]), rope_parameters=r)
    original = rng.choice([32, 64, 100])
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        r["factor"] = rng.choice([1.5, 2.0, 4.0, 8.0, 16.0])
    if kind in ("yarn", "llama3", "longrope"):
        if rng.random() < 0.8:
            r["original_max_position_embeddings"] = original
    if kind == "llama3":
        r["low_freq_factor"], r["high_freq_factor"] = rng.choice([(1.0, 4.0), (0.5, 2.0), (2.0, 3.0)])
    if kind == "yarn":
        for key, value in (("attention_factor", 1.2), ("beta_fast", 8), ("beta_slow", 2), ("truncate", False), ("mscale", 0.8)):
            if rng.random() < 0.4:
                r[key] = value
        if "mscale" in r and rng.random() < 0.7:
            r["mscale_all_dim"] = 0.4
    if kind == "longrope":
        n = rotary // 2
        r["short_factor"] = [round(rng.uniform(1, 2), 3) for _ in range(n)]
        r["long_factor"] = [round(rng.uniform(1, 10), 3) for _ in range(n)]
        if rng.random() < 0.4:
            r["factor"] = rng.choice([2.0, 5.0])
        if rng.random() < 0.3:
            r["attention_factor"] = 1.15
        if arch == "phi3":
            r.pop("original_max_position_embeddings", None)
            out["original_max_position_embeddings"] = original
        if arch == "phimoe":
            r.update(short_mscale=1.1, long_mscale=1.3, original_max_position_embeddings=original, long_factor=r["short_factor"])
    return out


def merged(index, entries):
    """entries, and those of the index file whose models were not made now, in the order of MODELS"""
    known = {}
    if os.path.exists(index):
        with open(index) as f:
            known = {e["name"]: e for e in json.load(f)}
    known.update({e["name"]: e for e in entries})
    return [known[name] for name in MODELS if name in known]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--random", nargs=2, type=int, metavar=("SEED", "COUNT"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    os.makedirs(args.out, exist_ok=True)

    if args.random:
        seed, count = args.random
        rng = random.Random(seed)
        specs = {}
        for i in range(count):
            arch, dtype, keys = draw(rng)
            specs[f"{i:03d}-{arch.replace('_', '-')}"] = dict(arch=arch, dtype=dtype, keys=keys, seed=seed * 100000 + i * 1000, random=True)
    else:
        unknown = set(args.names) - set(MODELS)
        if unknown:
            parser.error(f"unknown models {sorted(unknown)}; known: {', '.join(MODELS)}")
        specs = {n: dict(arch=a, dtype=d, keys=k, seed=1) for n, (a, d, k) in MODELS.items() if not args.names or n in args.names}

    entries = [make(name, spec, args.out, not args.random) for name, spec in specs.items()]
    index = os.path.join(args.out, "index.json")
    write_json(index, merged(index, entries) if args.names else entries)
    if weak:
        raise SystemExit(f"{weak} features change the logits too little to be tested")


if __name__ == "__main__":
    main()
