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
	var b []byte
	b = putInt(b, modelIR, m.IR)
	b = putString(b, modelProducer, m.Producer)
	b = putMessage(b, modelGraph, m.Graph.append(nil))
	for _, o := range m.Opsets {
		b = putMessage(b, modelOpset, putInt(putString(nil, opsetDomain, o.Domain), opsetVersion, o.Version))
	}
	for _, p := range m.Props {
		b = putMessage(b, modelProp, putEntry(p.Key, p.Value))
	}
	return b
}

func (g *Graph) append(b []byte) []byte {
	for i := range g.Nodes {
		b = putMessage(b, graphNode, g.Nodes[i].append(nil))
	}
	b = putString(b, graphName, g.Name)
	for i := range g.Initializers {
		b = putMessage(b, graphInitializer, g.Initializers[i].append(nil))
	}
	for _, v := range g.Inputs {
		b = putMessage(b, graphInput, v.append(nil))
	}
	for _, v := range g.Outputs {
		b = putMessage(b, graphOutput, v.append(nil))
	}
	for _, v := range g.Inner {
		b = putMessage(b, graphInner, v.append(nil))
	}
	return b
}

func (n *Node) append(b []byte) []byte {
	for _, s := range n.In {
		b = putString(b, nodeIn, s)
	}
	for _, s := range n.Out {
		b = putString(b, nodeOut, s)
	}
	b = putString(b, nodeName, n.Name)
	b = putString(b, nodeOp, n.Op)
	for i := range n.Attrs {
		b = putMessage(b, nodeAttr, n.Attrs[i].append(nil))
	}
	return putString(b, nodeDomain, n.Domain)
}

func (a *Attr) append(b []byte) []byte {
	b = putString(b, attrName, a.Name)
	switch a.Kind {
	case KindFloat:
		b = protowire.AppendTag(b, attrF, protowire.Fixed32Type)
		b = protowire.AppendFixed32(b, math.Float32bits(a.F))
	case KindInt:
		b = putInt(b, attrI, a.I)
	case KindString:
		b = putString(b, attrS, a.S)
	case KindInts:
		for _, v := range a.Ints {
			b = putInt(b, attrInts, v)
		}
	}
	return putInt(b, attrKind, int64(a.Kind))
}

func (t *Tensor) append(b []byte) []byte {
	for _, d := range t.Dims {
		b = putInt(b, tensorDims, d)
	}
	b = putInt(b, tensorType, int64(t.Type))
	b = putString(b, tensorName, t.Name)
	if t.External == nil {
		return putMessage(b, tensorRaw, t.Raw)
	}
	for _, e := range t.External.entries() {
		b = putMessage(b, tensorExternal, putEntry(e.Key, e.Value))
	}
	return putInt(b, tensorLocation, 1)
}

func (e *External) entries() []Prop {
	return []Prop{{"location", e.Location}, {"offset", strconv.FormatInt(e.Offset, 10)}, {"length", strconv.FormatInt(e.Length, 10)}}
}

func (v *Value) append(b []byte) []byte {
	var shape []byte
	for _, d := range v.Dims {
		shape = putMessage(shape, shapeDim, putInt(nil, dimValue, d))
	}
	tensor := putMessage(putInt(nil, elemType, int64(v.Type)), elemShape, shape)
	return putMessage(putString(b, valueName, v.Name), valueType, putMessage(nil, typeTensor, tensor))
}

func putEntry(key, value string) []byte {
	return putString(putString(nil, entryKey, key), entryValue, value)
}

func putInt(b []byte, n protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

func putString(b []byte, n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func putMessage(b []byte, n protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), m)
}
