"""ONNX Runtime: graphs of its own fused operators, written here, executed by its CPU provider.

Forms: float32; w8a8, weights in 8 bit per channel with activations quantised per tensor as they come; w4 and w4g128,
4-bit weights in blocks of 32 and 128 with 8-bit arithmetic (accuracy level 4), rounded by ONNX Runtime itself.
"""
import os

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import common

DOMAIN = "com.microsoft"
BLOCKS = {"w4": 32, "w4g128": 128}
MOST = 16384  # tokens that have a rotary embedding
FORMS = ("float32", "w8a8", "w4", "w4g128")


class Writer:
    """An ONNX graph under construction, whose weights go to a file beside it one by one."""

    def __init__(self, path, form):
        self.form, self.path = form, path
        self.nodes, self.initializers = [], []
        self.read = 0  # bytes of weights, by a token of decoding
        self.data = open(path + ".data", "wb")

    def constant(self, name, values):
        """Adds a constant; large ones lie in the file beside the graph."""
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        if values.nbytes < 1024:
            self.initializers.append(helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True))
            return name
        self.data.write(b"\0" * (-self.data.tell() % 4096))
        tensor = TensorProto(name=name, data_type=kind, dims=values.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", os.path.basename(self.path) + ".data"), ("offset", self.data.tell()),
                           ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self.data.write(np.ascontiguousarray(values).data)
        self.initializers.append(tensor)
        return name

    def node(self, kind, inputs, outputs, domain="", **attributes):
        """Adds an operator; returns its first output."""
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def weights(self, name, values):
        """Adds a constant of a product."""
        self.read += values.nbytes
        return self.constant(name, values)

    def product(self, name, value, weights, bias=None):
        """value times the transpose of weights, [outputs, inputs], in the form of this graph."""
        rows, columns = weights.shape
        out = name + ".product"
        if self.form == "float32":
            self.node("MatMul", [value, self.weights(name, weights.T)], [out])
        elif self.form == "w8a8":
            # symmetric, per channel: what quantize_dynamic(per_channel=True) makes of a MatMul
            scale = np.maximum(np.abs(weights).max(axis=1), 1e-30) / 127
            quantised = np.clip(np.rint(weights / scale[:, None]), -127, 127).astype(np.int8)
            self.node("DynamicQuantizeMatMul",
                      [value, self.weights(name, quantised.T), self.weights(name + ".scale", scale.astype(np.float32))],
                      [out], DOMAIN)
        else:
            from onnxruntime.capi._pybind_state import quantize_matmul_4bits
            block = BLOCKS[self.form]
            blocks = -(-columns // block)
            packed = np.zeros((rows, blocks, block // 2), np.uint8)
            scale = np.zeros(rows * blocks, np.float32)
            zeros = np.zeros(rows * ((blocks + 1) // 2), np.uint8)
            quantize_matmul_4bits(packed, np.ascontiguousarray(weights.T), scale, zeros, block, rows, columns, True)
            self.node("MatMulNBits", [value, self.weights(name, packed), self.weights(name + ".scale", scale)], [out],
                      DOMAIN, K=columns, N=rows, bits=4, block_size=block, accuracy_level=4)
        if bias is None:
            return out
        return self.node("Add", [out, self.constant(name + ".bias", bias)], [name + ".sum"])

    def write(self, inputs, outputs):
        """Completes the file."""
        self.data.close()
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)])
        model.ir_version = 10
        onnx.save(model, self.path)


def convert(model, out, form, _tokens):
    """Writes the graph of a model in a form; returns how many bytes of weights decoding a token reads."""
    if form not in FORMS:
        raise common.Refusal(f'form "{form}": want one of {", ".join(FORMS)}')
    graph = Writer(os.path.join(out, form + ".onnx"), form)
    kinds = {"i64": TensorProto.INT64, "i32": TensorProto.INT32, "f32": TensorProto.FLOAT}

    def value(name, kind, shape):
        return helper.make_tensor_value_info(name, kinds[kind], shape)

    inputs = [value("ids", "i64", [1, "rows"]), value("from", "i64", [1]), value("last", "i32", [1]),
              value("total", "i32", [])]
    outputs = [value("logits", "f32", [1, "out", model.vocabulary])]
    angles = np.outer(np.arange(MOST, dtype=np.float32), model.rotation())
    cosine, sine = graph.constant("cosine", np.cos(angles)), graph.constant("sine", np.sin(angles))
    graph.constant("end", np.array([2**31 - 1], np.int64))
    graph.constant("axis", np.array([1], np.int64))

    flow = graph.node("Gather", [graph.constant("embedding", model.tensor("model.embed_tokens.weight")), "ids"], ["flow"])
    added = None  # what the next norm adds to the flow first
    for i in range(model.layers):
        def gain(name):
            return graph.constant(f"{i}.{name}", model.layer(i, name + ".weight"))

        def norm(prefix, name):
            if added is None:
                return flow, graph.node("SimplifiedLayerNormalization", [flow, gain(name)], [prefix], axis=-1,
                                        epsilon=model.epsilon, stash_type=1)
            graph.node("SkipSimplifiedLayerNormalization", [flow, added, gain(name)],
                       [prefix, "", "", prefix + ".flow"], DOMAIN, epsilon=model.epsilon)
            return prefix + ".flow", prefix

        flow, normal = norm(f"{i}.in", "input_layernorm")
        parts = [model.layer(i, f"self_attn.{x}_proj.weight") for x in "qkv"]
        biases = [model.layer(i, f"self_attn.{x}_proj.bias") for x in "qkv"]
        packed = graph.product(f"{i}.qkv", normal, np.concatenate(parts),
                               None if biases[0] is None else np.concatenate(biases))
        cache = []
        for name in ("key", "value"):
            shape = [1, model.kv_heads, "room", model.head_size]
            inputs.append(value(f"past.{i}.{name}", "f32", shape))
            outputs.append(value(f"present.{i}.{name}", "f32", shape))
            cache.append(f".{i}.{name}")
        graph.node("GroupQueryAttention",
                   [packed, "", "", "past" + cache[0], "past" + cache[1], "last", "total", cosine, sine],
                   [f"{i}.mixed", "present" + cache[0], "present" + cache[1]], DOMAIN, num_heads=model.heads,
                   kv_num_heads=model.kv_heads, do_rotary=1, rotary_interleaved=0)
        added = graph.product(f"{i}.o", f"{i}.mixed", model.layer(i, "self_attn.o_proj.weight"))
        flow, normal = norm(f"{i}.post", "post_attention_layernorm")
        gate = graph.product(f"{i}.gate", normal, model.layer(i, "mlp.gate_proj.weight"))
        up = graph.product(f"{i}.up", normal, model.layer(i, "mlp.up_proj.weight"))
        silu = graph.node("QuickGelu", [gate], [f"{i}.silu"], DOMAIN, alpha=1.0)
        glu = graph.node("Mul", [silu, up], [f"{i}.glu"])
        added = graph.product(f"{i}.down", glu, model.layer(i, "mlp.down_proj.weight"))
    graph.node("SkipSimplifiedLayerNormalization",
               [flow, added, graph.constant("norm", model.tensor("model.norm.weight"))], ["normal"], DOMAIN,
               epsilon=model.epsilon)
    rows = graph.node("Slice", ["normal", "from", "end", "axis"], ["rows"])
    graph.nodes.append(helper.make_node("Identity", [graph.product("head", rows, model.head())], ["logits"]))
    graph.write(inputs, outputs)
    return graph.read


class Session(common.Session):
    """One sequence, whose cache is written in place."""

    def __init__(self, out, form, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(os.path.join(out, form + ".onnx"), options,
                                                    providers=["CPUExecutionProvider"])
        self.version, self.backend = onnxruntime.__version__, "CPUExecutionProvider"
        self.vocabulary = self.session.get_outputs()[0].shape[2]
        self.cache, self.length = {}, 0

    def reserve(self, tokens):
        if tokens > MOST:
            raise common.Refusal(f"{tokens} tokens: want at most {MOST}")
        for entry in self.session.get_inputs():
            if entry.name.startswith("past."):
                shape = (1, entry.shape[1], tokens, entry.shape[3])
                self.cache[entry.name[5:]] = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))

    def reset(self):
        self.length = 0

    def forward(self, ids, every=False):
        self.length += len(ids)
        bound = self.session.io_binding()
        bound.bind_cpu_input("ids", np.array([ids], np.int64))
        bound.bind_cpu_input("from", np.array([0 if every else len(ids) - 1], np.int64))
        bound.bind_cpu_input("last", np.array([self.length - 1], np.int32))
        bound.bind_cpu_input("total", np.array(self.length, np.int32))
        bound.bind_output("logits")  # first of the outputs that are read below
        for name, memory in self.cache.items():
            bound.bind_ortvalue_input("past." + name, memory)
            bound.bind_ortvalue_output("present." + name, memory)
        self.session.run_with_iobinding(bound)
        return bound.get_outputs()[0].numpy()[0]


if __name__ == "__main__":
    common.main(lambda: {"version": onnxruntime.__version__, "forms": FORMS[1:]}, convert,
                lambda out, form, threads, starting: Session(out, form, threads))
