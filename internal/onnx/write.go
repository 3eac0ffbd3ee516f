package onnx

import (
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the messages, in the order in which they are written.
const (
	modelIR       = 1
	modelProducer = 2
	modelGraph    = 7
	modelOpset    = 8
	modelProp     = 14

	opsetDomain  = 1
	opsetVersion = 2

	entryKey   = 1
	entryValue = 2

	graphNode        = 1
	graphName        = 2
	graphInitializer = 5
	graphInput       = 11
	graphOutput      = 12
	graphInner       = 13

	nodeIn     = 1
	nodeOut    = 2
	nodeName   = 3
	nodeOp     = 4
	nodeAttr   = 5
	nodeDomain = 7

	attrName = 1
	attrF    = 2
	attrI    = 3
	attrS    = 4
	attrInts = 8
	attrKind = 20

	tensorDims     = 1
	tensorType     = 2
	tensorName     = 8
	tensorRaw      = 9
	tensorExternal = 13
	tensorLocation = 14

	valueName = 1
	valueType = 2

	typeTensor = 1
	elemType   = 1
	elemShape  = 2
	shapeDim   = 1
	dimValue   = 1
)

// Marshal returns the model's bytes; the same model always gives the same ones.
func (m *Model) Marshal() []byte {
	var data []byte
	data = putInt(data, modelIR, m.IR)
	data = putString(data, modelProducer, m.Producer)
	data = putMessage(data, modelGraph, m.Graph.append(nil))
	for _, opset := range m.Opsets {
		entry := putInt(putString(nil, opsetDomain, opset.Domain), opsetVersion, opset.Version)
		data = putMessage(data, modelOpset, entry)
	}
	for _, prop := range m.Props {
		data = putMessage(data, modelProp, putEntry(prop.Key, prop.Value))
	}
	return data
}

// append writes the fields of a message in the order of their numbers, which makes the encoding the only one. So do
// those of the other messages.
func (g *Graph) append(data []byte) []byte {
	for i := range g.Nodes {
		data = putMessage(data, graphNode, g.Nodes[i].append(nil))
	}
	data = putString(data, graphName, g.Name)
	for i := range g.Initializers {
		data = putMessage(data, graphInitializer, g.Initializers[i].append(nil))
	}
	for _, value := range g.Inputs {
		data = putMessage(data, graphInput, value.append(nil))
	}
	for _, value := range g.Outputs {
		data = putMessage(data, graphOutput, value.append(nil))
	}
	for _, value := range g.Inner {
		data = putMessage(data, graphInner, value.append(nil))
	}
	return data
}

// The append methods write a message's fields in protobuf encoding, without its tag and length.
func (n *Node) append(data []byte) []byte {
	for _, name := range n.In {
		data = putString(data, nodeIn, name)
	}
	for _, name := range n.Out {
		data = putString(data, nodeOut, name)
	}
	data = putString(data, nodeName, n.Name)
	data = putString(data, nodeOp, n.Op)
	for i := range n.Attrs {
		data = putMessage(data, nodeAttr, n.Attrs[i].append(nil))
	}
	return putString(data, nodeDomain, n.Domain)
}

// append appends the attribute's message: its name, its kind, and the field of that kind.
func (a *Attr) append(data []byte) []byte {
	data = putString(data, attrName, a.Name)
	switch a.Kind {
	case KindFloat:
		data = protowire.AppendTag(data, attrF, protowire.Fixed32Type)
		data = protowire.AppendFixed32(data, math.Float32bits(a.F))
	case KindInt:
		data = putInt(data, attrI, a.I)
	case KindString:
		data = putString(data, attrS, a.S)
	case KindInts:
		for _, number := range a.Ints {
			data = putInt(data, attrInts, number)
		}
	}
	return putInt(data, attrKind, int64(a.Kind))
}

// append appends the tensor's message, with its bytes or with where they lie outside of the file.
func (t *Tensor) append(data []byte) []byte {
	for _, size := range t.Dims {
		data = putInt(data, tensorDims, size)
	}
	data = putInt(data, tensorType, int64(t.Type))
	data = putString(data, tensorName, t.Name)
	if t.External == nil {
		return putMessage(data, tensorRaw, t.Raw)
	}
	for _, entry := range t.External.entries() {
		data = putMessage(data, tensorExternal, putEntry(entry.Key, entry.Value))
	}
	return putInt(data, tensorLocation, 1)
}

// entries returns the keys that a tensor in another file has, in the order in which hetc writes them.
func (e *External) entries() []Prop {
	return []Prop{
		{"location", e.Location}, {"offset", strconv.FormatInt(e.Offset, 10)}, {"length", strconv.FormatInt(e.Length, 10)},
	}
}

// append appends a declaration of name, element type and shape.
func (v *Value) append(data []byte) []byte {
	var shape []byte
	for _, size := range v.Dims {
		shape = putMessage(shape, shapeDim, putInt(nil, dimValue, size))
	}
	tensor := putMessage(putInt(nil, elemType, int64(v.Type)), elemShape, shape)
	return putMessage(putString(data, valueName, v.Name), valueType, putMessage(nil, typeTensor, tensor))
}

// putEntry returns a message of a key and a value.
func putEntry(key, value string) []byte {
	return putString(putString(nil, entryKey, key), entryValue, value)
}

// putInt, putString and putMessage append a field with its number.
func putInt(data []byte, number protowire.Number, value int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(data, number, protowire.VarintType), uint64(value))
}

// putString appends a field with a text.
func putString(data []byte, number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(data, number, protowire.BytesType), text)
}

// putMessage appends a field with a message or with bytes.
func putMessage(data []byte, number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(data, number, protowire.BytesType), message)
}
