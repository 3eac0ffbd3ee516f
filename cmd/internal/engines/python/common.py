"""What the scripts of all peers share: reading a model, measuring it, comparing its logits, and one protocol.

A script is called with a command and a JSON object, and prints one JSON object:

    about     {}                                                  the version, the forms that differ here, and of which
                                                                  form each has the files, if not of itself
    convert   {model, out, form, tokens_file}                     the model in one form, in the folder out, and in
                                                                  weights.json the bytes that decoding a token reads
    prepare   {out, form, threads}                                what a start may use beside the model
    measure   {out, form, threads, start, prompt, depth, gen, reps}    how long each repetition took
    quality   {reference, out, form, threads, windows_file}       how far a form is from float32, by two folders
    logits    {out, form, threads, windows}                       logits of every position, to five places

The times are of the computation alone. What a library prints goes to the error output.
"""
import json
import math
import os
import sys
import time

import numpy as np

# What this tree converts: decoders of this one shape. Anything else is refused by name.
ARCHITECTURES = {"LlamaForCausalLM": False, "MistralForCausalLM": False, "Qwen2ForCausalLM": True}  # biases of q, k, v


class Refusal(Exception):
    """A model or a form that a peer cannot be measured with."""


class Model:
    """A Llama-shaped model in a Hugging Face directory; its tensors are read one at a time."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        names = config.get("architectures") or ["none"]
        if names[0] not in ARCHITECTURES:
            raise Refusal(f'architecture "{names[0]}": want one of {", ".join(ARCHITECTURES)}')
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        self.rope = rope
        self.rope_type = rope.get("rope_type", rope.get("type", "default"))
        if self.rope_type not in ("default", "linear", "llama3"):
            raise Refusal(f'rotary embedding of type "{self.rope_type}": want "default", "linear" or "llama3"')
        if config.get("hidden_act", "silu") != "silu":
            raise Refusal(f'activation "{config["hidden_act"]}": want "silu"')
        self.biases = ARCHITECTURES[names[0]] or config.get("attention_bias", False)
        self.hidden = config["hidden_size"]
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head_size = config.get("head_dim") or self.hidden // self.heads
        self.inner = config["intermediate_size"]
        self.vocabulary = config["vocab_size"]
        self.epsilon = config["rms_norm_eps"]
        self.theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
        self.positions = config.get("max_position_embeddings", 2048)
        self.tied = config.get("tie_word_embeddings", False)
        self.files = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors") and not name.startswith("reference"):
                self._index(os.path.join(folder, name))
        if not self.files:
            raise Refusal("the folder has no file of type .safetensors")

    def _index(self, path):
        """Notes where each tensor of a safetensors file lies."""
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                self.files[name] = (path, 8 + length + first, last - first, entry["dtype"], entry["shape"])

    def tensor(self, name):
        """The tensor as float32."""
        path, offset, size, kind, shape = self.files[name]
        raw = np.memmap(path, np.uint8, "r", offset, (size,))
        if kind == "BF16":
            wide = np.array(raw.view(np.uint16), np.uint32)
            wide <<= 16
            return wide.view(np.float32).reshape(shape)
        if kind not in ("F16", "F32"):
            raise Refusal(f'tensor "{name}" of type {kind}: want BF16, F16 or F32')
        return np.array(raw.view({"F16": np.float16, "F32": np.float32}[kind]), np.float32).reshape(shape)

    def layer(self, index, name):
        """A tensor of a layer, None where a layer has none of that name."""
        full = f"model.layers.{index}.{name}"
        return self.tensor(full) if full in self.files else None

    def head(self):
        """The matrix that makes logits, [vocabulary, hidden]."""
        return self.tensor("model.embed_tokens.weight" if self.tied else "lm_head.weight")

    def matrices(self):
        """Elements of the matrices that decoding a token reads."""
        attention = 2 * self.heads + 2 * self.kv_heads  # queries and outputs, keys and values
        layer = self.hidden * (attention * self.head_size + 3 * self.inner)
        return self.layers * layer + self.vocabulary * self.hidden

    def rotation(self):
        """Inverse frequencies of the rotary embedding, [head_size / 2]."""
        base = 1.0 / self.theta ** (np.arange(0, self.head_size, 2) / self.head_size)
        if self.rope_type == "linear":
            base = base / self.rope["factor"]
        elif self.rope_type == "llama3":
            # What turns less than low times within the original context is slowed down, more than high times left.
            low, high = self.rope["low_freq_factor"], self.rope["high_freq_factor"]
            turns = self.rope["original_max_position_embeddings"] * base / (2 * math.pi)
            kept = np.clip((turns - low) / (high - low), 0, 1)
            base = base * (kept + (1 - kept) / self.rope["factor"])
        return base.astype(np.float32)


class Session:
    """A model that is ready to compute: one sequence with its cache. Each peer has its own."""

    version = backend = ""
    vocabulary = 0

    def reserve(self, tokens):
        """Makes room for sequences of so many tokens, where a session needs that."""

    def reset(self):
        """Forgets the sequence."""
        raise NotImplementedError

    def forward(self, ids, every=False):
        """Appends tokens to the sequence; returns the last row of logits, or every row, [rows, vocabulary]."""
        raise NotImplementedError

    def timed_decode(self, prompt, gen):
        """Seconds for gen tokens, one by one, after a prompt."""
        self.reset()
        token = int(np.argmax(self.forward(prompt)[-1]))
        began = time.perf_counter()
        for _ in range(gen):
            token = int(np.argmax(self.forward([token])[-1]))
        return time.perf_counter() - began


def prompt_of(count, vocabulary, seed=0):
    """Tokens of a prompt; their values do not matter for the time."""
    return [(7 * i + 3 + 11 * seed) % vocabulary for i in range(count)]


def measure(open_session, task):
    """Executes a task and returns what the protocol says; of a start, the time since the imports were done."""
    began = time.perf_counter()
    session = open_session()
    session.reserve(task["start"] + task["prompt"] + task["depth"] + task["gen"])
    answer = {"threads": task["threads"], "prompt": task["prompt"] + task["start"], "depth": task["depth"],
              "gen": task["gen"], "seconds": []}
    if task["start"]:
        session.reset()
        np.argmax(session.forward(prompt_of(task["start"], session.vocabulary))[-1])
        answer["seconds"].append(time.perf_counter() - began)
    else:
        for repetition in range(task["reps"] + 1):  # the first one warms up
            ids = prompt_of(task["prompt"] or task["depth"], session.vocabulary, repetition)
            if task["prompt"]:
                session.reset()
                start = time.perf_counter()
                np.argmax(session.forward(ids)[-1])
                took = time.perf_counter() - start
            else:
                took = session.timed_decode(ids, task["gen"])
            if repetition:
                answer["seconds"].append(took)
    answer["version"], answer["backend"] = session.version, session.backend
    return answer


def log_softmax(rows):
    """Natural logarithms of probabilities, in double precision."""
    rows = rows.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))


def compare(reference, session, windows):
    """Mean KL divergence, agreement and perplexity over every position of windows of tokens.

    The error is half of a 95 % interval, over windows: positions of one window depend on each other.
    """
    divergences, same, surprise, positions = [], 0, 0.0, 0
    for model in (reference, session):
        model.reserve(max(map(len, windows)))
    for ids in windows:
        want, got = [], []
        for model, rows in ((reference, want), (session, got)):
            model.reset()
            rows.append(log_softmax(model.forward(ids, every=True)))
        want, got = want[0], got[0]
        divergences.append(float(np.mean(np.sum(np.exp(want) * (want - got), axis=-1))))
        same += int(np.sum(want.argmax(-1) == got.argmax(-1)))
        surprise -= float(np.sum(got[np.arange(len(ids) - 1), ids[1:]]))
        positions += len(ids)
    spread = float(np.std(divergences, ddof=1)) if len(divergences) > 1 else 0.0
    return {"windows": len(windows), "mean_kl": float(np.mean(divergences)),
            "mean_kl_error": 1.96 * spread / math.sqrt(len(divergences)), "same_top_token": same / positions,
            "perplexity": math.exp(surprise / (positions - len(windows)))}


def main(about, convert, open_session, prepare=lambda out, form, threads: None):
    """Serves one command of a peer's script. open_session(out, form, threads, starting) makes a Session."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like
    command, request = sys.argv[1], json.loads(sys.argv[2])
    weights = os.path.join(request.get("out", ""), "weights.json")

    def logits():
        session = open_session(request["out"], request["form"], request["threads"], False)
        session.reserve(max(map(len, request["windows"])))
        rows = []
        for ids in request["windows"]:
            session.reset()
            rows.append(np.round(session.forward(ids, every=True).astype(float), 5).tolist())
        return {"logits": rows}

    def read(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def write():
        read_bytes = convert(Model(request["model"]), request["out"], request["form"], read(request["tokens_file"]))
        with open(weights, "w", encoding="utf-8") as file:
            json.dump(read_bytes, file)
        return {}

    def timed():
        answer = measure(lambda: open_session(request["out"], request["form"], request["threads"], request["start"] > 0),
                         request)
        return answer | {"weights": read(weights)}

    def quality():
        return compare(open_session(request["reference"], "float32", request["threads"], False),
                       open_session(request["out"], request["form"], request["threads"], False),
                       read(request["windows_file"]))

    commands = {
        "about": about,
        "convert": write,
        "prepare": lambda: prepare(request["out"], request["form"], request["threads"]) or {},
        "measure": timed,
        "quality": quality,
        "logits": logits,
    }
    try:
        answer = commands[command]()
    except Refusal as refusal:
        answer = {"refused": str(refusal)}
    json.dump(answer, answers)
    answers.close()
    os._exit(0)  # destructors of libraries are not what is measured
