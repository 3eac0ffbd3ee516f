"""OpenVINO: a stateful graph written here, compressed or quantised by its own tool NNCF, run by its CPU plugin.

Forms: float32; w8, 8-bit weights per channel; w8a8, activations in 8 bit too, static, calibrated; w4g128, 4-bit symmetric
weights in groups of 128, embedding and head in 8 bit. Each with the plugin's own choice of precision (bfloat16 where the
processor has it) and, with -f32 behind, with the hint to compute in float32.
"""
import os
import shutil

import numpy as np
import openvino
from openvino import opset13 as ops

import common

STORED = ("float32", "w8", "w8a8", "w4g128")
VERSION = openvino.__version__.split("-")[0]


def constant(values, dtype=None):
    """A constant of a graph."""
    return ops.constant(np.asarray(values, dtype))


def parameter(shape, dtype, name):
    """An input of a graph."""
    node = ops.parameter(openvino.PartialShape(shape), dtype, name=name)
    node.output(0).set_names({name})
    return node


class Builder:
    """Writes a decoder as a graph with a cache in its state. The patterns are those that the plugin fuses."""

    def __init__(self, model):
        self.model = model
        self.sinks = []
        # the plugin fuses attention with its cache where the number of sequences is open
        self.ids = parameter([-1, -1], np.int64, "ids")
        self.begin = parameter([1], np.int64, "from")
        self.positions = parameter([-1, -1], np.int64, "positions")
        self.beams = parameter([-1], np.int32, "beams")

    @staticmethod
    def weights(values):
        """Weights are stored as float16, as exporters store them."""
        return ops.convert(constant(values, np.float16), "f32")

    def product(self, value, weights, bias=None):
        """value times the transpose of weights."""
        out = ops.matmul(value, self.weights(weights), False, True)
        return out if bias is None else ops.add(out, constant(bias, np.float32))

    def norm(self, value, gain):
        """Root-mean-square norm."""
        square = ops.reduce_mean(ops.power(value, constant(2.0, np.float32)), constant([-1], np.int64), True)
        root = ops.sqrt(ops.add(square, constant(self.model.epsilon, np.float32)))
        return ops.multiply(constant(gain, np.float32), ops.multiply(value, ops.divide(constant(1.0, np.float32), root)))

    def heads(self, value, count):
        """[sequences, rows, count * size] as [sequences, count, rows, size]."""
        shape = constant([0, 0, count, self.model.head_size], np.int64)
        return ops.transpose(ops.reshape(value, shape, True), constant([0, 2, 1, 3], np.int64))

    def rotate(self, value, cosine, sine):
        """Rotary embedding in the layout of halves."""
        half = self.model.head_size // 2
        axis, step = constant([3], np.int64), constant([1], np.int64)
        first = ops.slice(value, constant([0], np.int64), constant([half], np.int64), step, axis)
        second = ops.slice(value, constant([half], np.int64), constant([2**31 - 1], np.int64), step, axis)
        turned = ops.concat([ops.multiply(second, constant(-1.0, np.float32)), first], -1)
        return ops.add(ops.multiply(value, cosine), ops.multiply(turned, sine))

    def cached(self, value, name):
        """Appends rows to the state of that name; returns all of them, one copy for every head of queries."""
        model = self.model
        shape = openvino.PartialShape([-1, model.kv_heads, -1, model.head_size])
        info = openvino.op.util.VariableInfo()
        info.data_shape, info.data_type, info.variable_id = shape, openvino.Type.f32, name
        variable = openvino.op.util.Variable(info)
        sequences = ops.gather(ops.shape_of(self.ids, "i64"), constant([0], np.int64), constant(0, np.int64))
        target = ops.concat([sequences, constant([model.kv_heads, 0, model.head_size], np.int64)], 0)
        empty = ops.broadcast(constant(0.0, np.float32), target)
        past = ops.gather(ops.read_value(empty, variable), self.beams, constant(0, np.int64))
        rows = ops.concat([past, value], 2)
        self.sinks.append(ops.assign(rows, variable))
        group = model.heads // model.kv_heads
        if group == 1:
            return rows
        wide = ops.unsqueeze(rows, constant([2], np.int64))
        sizes = ops.shape_of(rows, "i64")
        target = ops.concat([ops.gather(sizes, constant([0, 1], np.int64), constant(0, np.int64)),
                             constant([group], np.int64),
                             ops.gather(sizes, constant([2, 3], np.int64), constant(0, np.int64))], 0)
        wide = ops.broadcast(wide, target, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, constant([0, model.heads, -1, model.head_size], np.int64), True)

    def begin_flow(self):
        """What the layers start from: the embedded tokens, cosines and sines of their positions, and the mask."""
        model = self.model
        flow = ops.gather(self.weights(model.tensor("model.embed_tokens.weight")), self.ids, constant(0, np.int64))
        # a product of numbers, not of matrices, which quantisation would round to 8 bits
        places = ops.convert(ops.unsqueeze(self.positions, constant([2], np.int64)), "f32")
        angles = ops.multiply(places, constant(model.rotation()[None, None, :], np.float32))
        angles = ops.unsqueeze(ops.concat([angles, angles], -1), constant([1], np.int64))
        cosine, sine = ops.cos(angles), ops.sin(angles)
        # a row sees the tokens up to its own
        last = ops.reduce_max(self.positions, constant([0, 1], np.int64), False)
        seen = ops.range(constant(0, np.int64), ops.add(last, constant(1, np.int64)),
                         constant(1, np.int64), "i64")
        allowed = ops.less_equal(seen, ops.unsqueeze(ops.unsqueeze(self.positions, constant([1], np.int64)),
                                                     constant([3], np.int64)))
        return flow, cosine, sine, ops.select(allowed, constant(0.0, np.float32), constant(-65504.0, np.float32))

    def layer(self, index, flow, cosine, sine, mask):
        """The flow behind a layer."""
        model = self.model

        def part(name):
            return model.layer(index, name)

        normal = self.norm(flow, part("input_layernorm.weight"))
        query, key, value = (self.heads(self.product(normal, part(f"self_attn.{x}_proj.weight"),
                                                     part(f"self_attn.{x}_proj.bias")), count)
                             for x, count in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)))
        keys = self.cached(self.rotate(key, cosine, sine), f"{index}.key")
        values = self.cached(value, f"{index}.value")
        mixed = ops.scaled_dot_product_attention(self.rotate(query, cosine, sine), keys, values, mask, causal=False)
        mixed = ops.reshape(ops.transpose(mixed, constant([0, 2, 1, 3], np.int64)),
                            constant([0, 0, model.heads * model.head_size], np.int64), True)
        flow = ops.add(flow, self.product(mixed, part("self_attn.o_proj.weight")))
        normal = self.norm(flow, part("post_attention_layernorm.weight"))
        gate = ops.swish(self.product(normal, part("mlp.gate_proj.weight")))
        inner = ops.multiply(gate, self.product(normal, part("mlp.up_proj.weight")))
        return ops.add(flow, self.product(inner, part("mlp.down_proj.weight")))

    def logits(self, flow):
        """Logits of the last row, which is all that generation needs, or of more."""
        rows = ops.slice(flow, self.begin, constant([2**31 - 1], np.int64), constant([1], np.int64),
                         constant([1], np.int64))
        return self.product(self.norm(rows, self.model.tensor("model.norm.weight")), self.model.head())

    def graph(self, logits):
        """The whole graph."""
        result = ops.result(logits)
        result.output(0).set_names({"logits"})
        graph = openvino.Model([result], self.sinks, [self.ids, self.begin, self.positions, self.beams], "decoder")
        graph.validate_nodes_and_infer_types()
        return graph

    def build(self):
        """The whole graph, with weights as they are."""
        flow, *shared = self.begin_flow()
        for i in range(self.model.layers):
            flow = self.layer(i, flow, *shared)
        return self.graph(self.logits(flow))


class Sections:
    """Quantises a decoder as NNCF would the whole graph, one section after the other: each layer, then the logits.

    NNCF collects its statistics in a graph whose weights are float32, some 8 bytes for each: more than 19 GB for a
    model of 3 billion. It calibrates with what flows through the float model, so a section that is given the flow
    behind the sections before it gets the same ranges.
    """

    def __init__(self, model, tokens):
        self.model, self.whole = model, Builder(model)
        inputs = [self.whole.ids, self.whole.positions]
        names = ("flow", "cosine", "sine", "mask")
        # what sections have as inputs: outputs in the whole graph, and values by sample
        self.outputs = {node.get_friendly_name(): node.output(0) for node in inputs + [self.whole.begin, self.whole.beams]}
        self.outputs.update((name, node.output(0)) for name, node in zip(names, self.whole.begin_flow()))
        self.samples = [feed(ids, 0, True) for ids in tokens]
        start = openvino.Model([ops.result(self.outputs[name]) for name in names], inputs, "start")
        for sample, values in zip(self.samples, evaluate(start, self.feeds(start))):
            sample.update(zip(names, values))

    def quantise(self):
        """The whole graph."""
        for i in range(self.model.layers):
            part = Builder(self.model)
            inputs = [self.input(name) for name in ("flow", "cosine", "sine", "mask")]
            layer = openvino.Model([ops.result(part.layer(i, *inputs))], part.sinks, inputs + [part.ids, part.beams],
                                   f"layer {i}")
            self.append(layer)
            for sample, (flow,) in zip(self.samples, evaluate(layer, self.feeds(layer))):
                sample["flow"] = flow
        part, flow = Builder(self.model), self.input("flow")
        self.append(openvino.Model([ops.result(part.logits(flow))], [flow, part.begin], "logits"))
        return self.whole.graph(self.outputs["flow"])

    def input(self, name):
        """An input of a section."""
        return parameter(self.outputs[name].get_partial_shape(), np.float32, name)

    def feeds(self, section):
        """Inputs of a section, by sample."""
        names = [node.get_friendly_name() for node in section.get_parameters()]
        return [{name: sample[name] for name in names} for sample in self.samples]

    def append(self, section):
        """Quantises a section and puts it behind the ones before it."""
        quantised = quantise(section, self.feeds(section))
        for node in quantised.get_parameters():
            for use in node.output(0).get_target_inputs():
                use.replace_source_output(self.outputs[node.get_friendly_name()])
        self.outputs["flow"] = quantised.get_results()[0].input_value(0)
        self.whole.sinks += quantised.get_sinks()


def evaluate(graph, feeds):
    """Outputs of a graph by input, computed as NNCF computes what it calibrates with."""
    compiled = openvino.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    for inputs in feeds:
        request.reset_state()
        request.infer(inputs, share_inputs=True)
        yield [np.array(request.get_output_tensor(k).data) for k in range(len(compiled.outputs))]


def quantise(graph, feeds):
    """A graph with 8-bit weights and activations, whose static ranges come from its inputs in feeds."""
    import nncf  # which only conversion needs, and which takes seconds to import

    # attention and the flow between layers stay in float: quantised, the plugin does not fuse them
    kinds = ["ScaledDotProductAttention", "Concat", "Broadcast", "Gather", "Multiply", "Add", "ReadValue"]
    return nncf.quantize(
        graph, nncf.Dataset(feeds), subset_size=len(feeds), model_type=nncf.ModelType.TRANSFORMER,
        ignored_scope=nncf.IgnoredScope(types=kinds, validate=False),
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            disable_bias_correction=True, smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=-1)))


def feed(ids, before, every):
    """The inputs of one call."""
    return {"ids": np.array([ids], np.int64), "from": np.array([0 if every else len(ids) - 1], np.int64),
            "positions": np.arange(before, before + len(ids), dtype=np.int64)[None], "beams": np.zeros(1, np.int32)}


def about():
    """Version and forms. Without bfloat16 in the processor the hint for float32 changes nothing."""
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    suffixes = ["", "-f32"] if "BF16" in capabilities else [""]
    forms = {stored + suffix: stored for stored in STORED[1:] for suffix in suffixes}
    return {"version": VERSION, "forms": list(forms), "stored": forms}


def convert(model, out, form, tokens):
    """Writes the model in a form; returns how many bytes of weights decoding a token reads."""
    import nncf  # which only conversion needs, and which takes seconds to import

    stored = form.removesuffix("-f32")
    if stored not in STORED:
        raise common.Refusal(f'form "{form}": want one of {", ".join(STORED)}, with or without -f32')
    graph = Sections(model, tokens).quantise() if stored == "w8a8" else Builder(model).build()
    if stored == "w8":
        graph = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
    elif stored == "w4g128":
        graph = nncf.compress_weights(
            graph, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=128, ratio=1.0,
            advanced_parameters=nncf.AdvancedCompressionParameters(
                group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST))
    try:
        openvino.save_model(graph, os.path.join(out, stored + ".xml"), compress_to_fp16=False)
    except RuntimeError as error:  # which does not say that a disk is full
        raise OSError(f"{error}, with {shutil.disk_usage(out).free >> 20} MiB free") from error
    return decode_bytes(graph)


def decode_bytes(graph):
    """Bytes of the constants that matrix products read."""
    constants = {}
    for node in graph.get_ops():
        above = [node.input_value(1).get_node()] if node.get_type_name() == "MatMul" else []
        while above:
            source = above.pop()
            if source.get_type_name() == "Constant":
                constants[source.get_friendly_name()] = source.get_byte_size()
            above += [value.get_node() for value in source.input_values()]
    return sum(constants.values())


class Session(common.Session):
    """One request and its state. A start reads the compiled model that prepare has left."""

    def __init__(self, out, form, threads, starting):
        stored = form.removesuffix("-f32")
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        if form != stored or stored == "float32":
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        if stored == "float32":  # the reference: nothing of it in less than float32
            settings.update(KV_CACHE_PRECISION="f32", DYNAMIC_QUANTIZATION_GROUP_SIZE=0)
        if starting:
            settings["CACHE_DIR"] = os.path.join(out, "compiled")
        core = openvino.Core()
        self.compiled = core.compile_model(os.path.join(out, stored + ".xml"), "CPU", settings)
        self.request = self.compiled.create_infer_request()
        self.version = VERSION
        self.vocabulary = self.compiled.output(0).partial_shape[2].get_length()
        self.length, self.starting = 0, starting

    @property
    def backend(self):
        """Which kernels the plugin has chosen for most matrix products, and its precision."""
        precision = self.compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        names = []
        for node in self.compiled.get_runtime_model().get_ops():
            about = node.get_rt_info()
            if str(about["layerType"].astype(str)) in ("FullyConnected", "MatMul"):
                names.append(about["primitiveType"].astype(str))
        return f"{max(names, key=names.count) if names else 'unknown kernels'}, {precision}"

    def reset(self):
        self.request.reset_state()
        self.length = 0

    def forward(self, ids, every=False):
        before, self.length = self.length, self.length + len(ids)
        self.request.infer(feed(ids, before, every), share_inputs=True)
        return self.request.get_output_tensor(0).data[0]


if __name__ == "__main__":
    common.main(about, convert, Session, lambda out, form, threads: Session(out, form, threads, True) and None)
