"""CTranslate2: its decoder, filled with the model's weights through its own specification of models.

Forms: float32; int8, weights in 8 bit per channel, activations quantised per row as they come.
"""
import os
import time

os.environ.setdefault("CT2_VERBOSE", "1")  # it says which instruction set it has chosen

import ctranslate2
import numpy as np

import common

FORMS = {"float32": ("float32", "float32"), "int8": ("int8", "int8_float32")}  # stored, computed


def convert(model, out, form, _tokens):
    """Writes the model in a form; returns how many bytes of weights decoding a token reads."""
    if form not in FORMS:
        raise common.Refusal(f'form "{form}": want one of {", ".join(FORMS)}')
    if model.rope_type != "default":
        raise common.Refusal(f'rotary embedding of type "{model.rope_type}": want "default"')
    if model.head_size * model.heads != model.hidden:
        raise common.Refusal(f"{model.heads} heads of {model.head_size} for {model.hidden} channels: want as many")
    spec = ctranslate2.specs.TransformerDecoderModelSpec.from_config(
        model.layers, model.heads, activation=ctranslate2.specs.Activation.SWISH, pre_norm=True, ffn_glu=True,
        rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=model.theta, num_heads_kv=model.kv_heads)
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = model.tensor("model.embed_tokens.weight")
    decoder.layer_norm.gamma = model.tensor("model.norm.weight")
    decoder.projection.weight = model.head()
    for i, layer in enumerate(decoder.layer):
        def part(name):
            return model.layer(i, name)

        layer.self_attention.layer_norm.gamma = part("input_layernorm.weight")
        layer.ffn.layer_norm.gamma = part("post_attention_layernorm.weight")
        fused, mixed = layer.self_attention.linear[:2]
        fused.weight = np.concatenate([part(f"self_attn.{x}_proj.weight") for x in "qkv"])
        if model.biases:
            fused.bias = np.concatenate([part(f"self_attn.{x}_proj.bias") for x in "qkv"])
        mixed.weight = part("self_attn.o_proj.weight")
        layer.ffn.linear_0.weight = part("mlp.gate_proj.weight")
        layer.ffn.linear_0_noact.weight = part("mlp.up_proj.weight")
        layer.ffn.linear_1.weight = part("mlp.down_proj.weight")
    spec.config.layer_norm_epsilon = model.epsilon
    # tokens go in as words; these are their numbers
    spec.register_vocabulary([word(i) for i in range(model.vocabulary)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = word(0)
    spec.validate()
    spec.optimize(quantization=FORMS[form][0])
    folder = os.path.join(out, form)
    os.makedirs(folder, exist_ok=True)
    spec.save(folder)
    return model.matrices() * np.dtype(FORMS[form][0]).itemsize


def word(number):
    """What the vocabulary calls a token."""
    return f"<{number}>"


class Session(common.Session):
    """A generator. It keeps no cache between calls: forward computes a whole sequence."""

    def __init__(self, out, form, threads):
        self.generator = ctranslate2.Generator(os.path.join(out, form), compute_type=FORMS[form][1], inter_threads=1,
                                               intra_threads=threads)
        self.version, self.backend = ctranslate2.__version__, self.generator.compute_type
        with open(os.path.join(out, form, "vocabulary.json"), encoding="utf-8") as file:
            self.vocabulary = file.read().count('"') // 2

    def reset(self):
        pass

    def forward(self, ids, every=False):
        # the library has no call for the last row alone: its head computes every row of a prompt
        return np.array(self.generator.forward_batch([[word(i) for i in ids]]))[0]

    def timed_decode(self, prompt, gen):
        """The time between the first generated token and the last."""
        times = []

        def note(_):
            times.append(time.perf_counter())
            return False

        self.generator.generate_batch([[word(i) for i in prompt]], max_length=gen + 1, min_length=gen + 1,
                                      include_prompt_in_result=False, sampling_topk=1, callback=note)
        if len(times) != gen + 1:
            raise common.Refusal(f"it generated {len(times)} tokens: want {gen + 1}")
        return times[-1] - times[0]


if __name__ == "__main__":
    common.main(lambda: {"version": ctranslate2.__version__, "forms": ["int8"]}, convert,
                lambda out, form, threads, starting: Session(out, form, threads))
