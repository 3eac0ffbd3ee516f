"""Makes the files of this directory. Packages (PyPI): gguf 0.19.0, numpy, safetensors, tokenizers 0.23.3,
transformers 5.23.0 and sentencepiece 0.2.3. Run it here: python make.py

quants.gguf         blocks of every type: random ones, and "source" (f32) with what the reference quantises it to
quants.safetensors  the reference's float32 values of the former, by name
llama.gguf          a small Llama as converters store it (rotary pairs, frequency factors), f16
llama.safetensors   its tensors as Hugging Face has them, f16
TOKENIZER.json      a tokenizer.json trained below
TOKENIZER.gguf      the same as converters store it, without tensors
ids.json            what each tokenizer makes of the texts, nothing added
"""

import json
import os
import tempfile

import numpy as np
import sentencepiece
from gguf import GGMLQuantizationType as Type, GGUFWriter, TokenType, quants
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import generate_merges

rng = np.random.default_rng(4)


def halves(x):
    return np.ascontiguousarray(x, np.float16).view(np.uint8)


def blocks(type, rows, cols):
    """Random blocks whose scales are sane but for the first two, which are zero and negative."""
    block, size = quants.GGML_QUANT_SIZES[type]
    n = rows * cols // block
    b = rng.integers(0, 256, (n, size), np.uint8)
    scale = rng.normal(0, 0.02, (n, 2)).astype(np.float16)
    scale[0], scale[1] = 0, -0.5
    for k, at in enumerate({Type.Q6_K: [208]}.get(type, [0, 2] if type.name[-1] in "1K" else [0])):
        b[:, at : at + 2] = halves(scale[:, k]).reshape(n, 2)
    return b.reshape(rows, -1)


def make_quants():
    w = GGUFWriter("quants.gguf", "test")
    reference = {}

    def add(name, data, type):
        w.add_tensor(name, data, raw_dtype=type)
        reference[name] = quants.dequantize(data.copy(), type).astype(np.float32)

    special = np.array([0, -0.0, 1, 65504, -65504, 6e-8, -5e-6, 6.1e-5, np.inf, -np.inf], np.float16)
    f16 = rng.normal(0, 1, (2, 24)).astype(np.float16)
    f16[0, : len(special)] = special
    w.add_tensor("f16", f16)
    reference["f16"] = f16.astype(np.float32)
    f32 = rng.normal(0, 1, (2, 24)).astype(np.float32)
    w.add_tensor("f32", f32)
    reference["f32"] = f32
    add("bf16", rng.integers(0, 0x7F00, (2, 24), np.uint16).view(np.uint8), Type.BF16)
    for type in (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K):
        add(type.name.lower(), blocks(type, 2, 512), type)
    stack = np.stack([blocks(Type.Q4_K, 2, 256) for _ in range(3)])
    add("stack", stack, Type.Q4_K)

    source = rng.normal(0, 0.1, (6, 256)).astype(np.float32)
    source[0, :32] = 0
    source[0, 32:64] = np.linspace(-1, 1, 32)  # the largest magnitude twice, with both signs
    source[0, 64:96] = np.linspace(1, -1, 32)
    source[0, 96:128] = np.arange(32) * 0.5 - 8  # halves between two steps
    source[0, 128:160] = np.arange(32) - 127
    source[1, :32] *= 1e-5  # scales that are subnormal halves, or vanish
    source[1, 32:64] *= 1e-7
    source[1, 64:96] *= 1e-9
    source[1, 96:128] *= 1e-30
    source[2, :64] *= 1e4
    source[3] = np.round(source[3] * 100) / 100
    source[4, 0] = 65519  # below the overflow of a half
    source[5] = (rng.integers(0, 1 << 16, 256).astype(np.uint32) << 12 | 0x38000000).view(np.float32)
    w.add_tensor("source", source)
    for type in (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0):
        w.add_tensor("source." + type.name.lower(), quants.quantize(source, type), raw_dtype=type)
    close(w)
    save_file(reference, "quants.safetensors")


def close(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_llama():
    hidden, heads, kv, ffn, vocab, dim = 16, 2, 1, 24, 40, 16
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden),
        layer + "input_layernorm.weight": (hidden,), layer + "post_attention_layernorm.weight": (hidden,),
        layer + "mlp.gate_proj.weight": (ffn, hidden), layer + "mlp.up_proj.weight": (ffn, hidden),
        layer + "mlp.down_proj.weight": (hidden, ffn), layer + "self_attn.o_proj.weight": (hidden, heads * dim),
        layer + "self_attn.o_proj.bias": (hidden,),
    }
    for p, n in (("q", heads), ("k", kv), ("v", kv)):
        shapes[layer + f"self_attn.{p}_proj.weight"] = (n * dim, hidden)
        shapes[layer + f"self_attn.{p}_proj.bias"] = (n * dim,)
    hf = {name: rng.normal(0, 0.2, shape).astype(np.float16) for name, shape in shapes.items()}
    stored = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        layer + "input_layernorm": "blk.0.attn_norm", layer + "post_attention_layernorm": "blk.0.ffn_norm",
        layer + "mlp.gate_proj": "blk.0.ffn_gate", layer + "mlp.up_proj": "blk.0.ffn_up", layer + "mlp.down_proj": "blk.0.ffn_down",
        layer + "self_attn.q_proj": "blk.0.attn_q", layer + "self_attn.k_proj": "blk.0.attn_k",
        layer + "self_attn.v_proj": "blk.0.attn_v", layer + "self_attn.o_proj": "blk.0.attn_output",
    }
    w = GGUFWriter("llama.gguf", "llama")
    w.add_name("small")
    w.add_block_count(1)
    w.add_context_length(131072)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(500000.0)
    w.add_rope_dimension_count(dim)
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("none")
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_eot_token_id(3)
    # Llama 3's factors, in the words of the reference implementation: by wavelength.
    factors = []
    for freq in 500000.0 ** -(np.arange(0, dim, 2, dtype=np.float32) / dim):
        wavelength = 2 * np.pi / freq
        if wavelength < 8192 / 4:
            factors.append(1)
        elif wavelength > 8192:
            factors.append(8)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    w.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    for name, x in hf.items():
        base, suffix = name.rsplit(".", 1)
        for p, n in (("q_proj", heads), ("k_proj", kv)):
            if base.endswith(p):
                x = x.reshape(n, 2, dim // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        w.add_tensor(stored[base] + "." + suffix, x if x.ndim > 1 else x.astype(np.float32))
    close(w)
    save_file(hf, "llama.safetensors")


ENGLISH = """The lighthouse keeper's daughter hadn't seen the harbour since 1987; she'd counted 1234 ships, and they're all gone now.
It isn't that we've lost interest, but I'll admit the machine doesn't care. Numbers: 3.14159, 1,000,000 and 42%.
Compilers turn programs into instructions; processors turn instructions into heat. What will the planner do tomorrow?"""
OTHERS = """Größe, Äpfel und Übermut; déjà vu, señor, cœur. Съешь же ещё этих мягких французских булок. 東京都の天気は晴れです。
人工智能正在改变世界。안녕하세요 세계. مرحبا بالعالم. שלום עולם. नमस्ते दुनिया. สวัสดีชาวโลก 🦙🚀👩‍👩‍👧 é"""
CODE = """func main() {\n\tfor i := 0; i < 10; i++ {\n\t\tfmt.Println("hello", i)\n\t}\n}\n\n    def f(x):\n        return x ** 2  # twice\n"""
CORPUS = [ENGLISH, OTHERS, CODE] * 2

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n ", "a", " a", "a ", "  a  b   c  ", "Hello, world!", " Hello World", "hello\tworld",
    "don't DON'T I'll I'LL you've they're she'd 'tis ''", "1 12 123 1234 12345 1,234.5e-6 ½ ² ٣٤", "x=1;y=2//3", "a\u00a0b\u2009c\u3000d",
    "Größe Äpfel", "e\u0301 \u00e9 A\u030a \u212b", "ﬁne ﬀ", "東京 都", "人工智能", "안녕 세계", "مرحبا", "שלום", "नमस्ते", "สวัสดี", "🦙", "👩‍👩‍👧 🏳️‍🌈", "a🚀b",
    "\u0000", "\u0001\u0002", "\u200b\ufeff", "▁", "▁a ▁▁b", "<s>", "</s>x", "<unk>", "<|endoftext|>", "a<|im_end|>b", "<|eot_id|> c", "<tool> d", "<0x41>",
    "...---===", "!?!?", "    indented\n        more\n\n\n", "\tif x {\n\t\treturn\n\t}\n", "https://example.org/a?b=c&d=%20", "C:\\dir\\file.txt", "\"quoted\" 'single'",
    "a" * 300, "ab" * 150, " " * 70, "\n" * 20, "9" * 40, "supercalifragilisticexpialidocious" * 3,
]
WORDS = [w for t in CORPUS[:3] for w in t.split()]
TEXTS += [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 100 - len(TEXTS))]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level(name, regex, normalizer, added, size, pre, ignore_merges=False, bos=None, add_bos=None):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not regex)
    if regex:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), t.pre_tokenizer])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_tokens([AddedToken(a, special=special, normalized=False) for a, special in added])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if add_bos:
        t.post_processor = processors.Sequence([t.post_processor, template(t, bos)])
    t.save(name + ".json", pretty=False)
    w = GGUFWriter(name + ".gguf", "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    n = t.get_vocab_size()
    special = dict(added)
    tokens = [t.id_to_token(i) for i in range(n)]
    types = [TokenType.NORMAL if s not in special else TokenType.CONTROL if special[s] else TokenType.USER_DEFINED for s in tokens]
    w.add_token_list(tokens + [f"[PAD{i}]" for i in range(n, n + 5)])  # as for a vocabulary rounded up
    w.add_token_types(types + [TokenType.UNUSED] * 5)
    w.add_token_merges([" ".join(m) for m in json.load(open(name + ".json"))["model"]["merges"]])
    if bos:
        w.add_bos_token_id(t.token_to_id(bos))
    w.add_eos_token_id(t.token_to_id(added[-1][0]))
    if add_bos is not None:
        w.add_add_bos_token(add_bos)
    w.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    close(w)
    return t


def template(t, bos):
    return processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, t.token_to_id(bos))])


def sentence_piece(name):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "text")
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(CORPUS))
        sentencepiece.SentencePieceTrainer.train(
            input=path, model_prefix=path, vocab_size=420, model_type="bpe", byte_fallback=True, character_coverage=0.99,
            normalization_rule_name="identity", split_digits=True, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
            user_defined_symbols=["<tool>"], num_threads=1, minloglevel=2)
        sp = sentencepiece.SentencePieceProcessor(model_file=path + ".model")
    pieces = [(sp.id_to_piece(i), sp.get_score(i)) for i in range(sp.get_piece_size())]
    vocab = {p: i for i, (p, _) in enumerate(pieces)}
    control = [p for i, (p, _) in enumerate(pieces) if sp.is_control(i) or sp.is_unknown(i)]
    merges = generate_merges(vocab, dict(pieces), skip_tokens=control + ["<tool>"])
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in control])
    t.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    t.post_processor = template(t, "<s>")
    t.save(name + ".json", pretty=False)
    w = GGUFWriter(name + ".gguf", "llama")
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    kinds = []
    for i in range(len(pieces)):
        kinds.append(TokenType.UNKNOWN if sp.is_unknown(i) else TokenType.CONTROL if sp.is_control(i) else TokenType.BYTE if sp.is_byte(i)
                     else TokenType.USER_DEFINED if pieces[i][0] == "<tool>" else TokenType.NORMAL)
    w.add_token_list([p for p, _ in pieces])
    w.add_token_scores([s for _, s in pieces])
    w.add_token_types(kinds)
    w.add_bos_token_id(sp.bos_id())
    w.add_eos_token_id(sp.eos_id())
    w.add_unk_token_id(sp.unk_id())
    close(w)
    same = sum(t.encode(x, add_special_tokens=False).ids == sp.encode(x) for x in TEXTS)
    print(f"{name}: {same} of {len(TEXTS)} texts as by sentencepiece itself")
    return t


def main():
    make_quants()
    make_llama()
    all = {
        "gpt2": byte_level("gpt2", None, None, [("<|endoftext|>", True)], 300, "gpt-2"),
        "llama3": byte_level("llama3", LLAMA3, None, [("<|begin_of_text|>", True), ("<|eot_id|>", True)], 320, "llama-bpe", True, "<|begin_of_text|>", True),
        "qwen2": byte_level("qwen2", QWEN2, normalizers.NFC(), [("<|endoftext|>", True), ("<tool>", False), ("<|im_end|>", True)], 320, "qwen2", add_bos=False),
        "sentencepiece": sentence_piece("sentencepiece"),
    }
    ids = {name: [t.encode(x, add_special_tokens=False).ids for x in TEXTS] for name, t in all.items()}
    decoded = {name: [t.decode(i, skip_special_tokens=False) for i in ids[name]] for name, t in all.items()}
    with open("ids.json", "w", encoding="utf-8") as f:
        json.dump({"texts": TEXTS, "ids": ids, "decoded": {n: [d if d != x else None for d, x in zip(ds, TEXTS)] for n, ds in decoded.items()}}, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


main()
