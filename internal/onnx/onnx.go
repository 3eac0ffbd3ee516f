// Package onnx knows the bytes of an ONNX model: it writes them, and reads them back without trust.
//
// Of the format it knows what hetc's own models need: one graph of operators over tensors of static shapes,
// attributes of numbers and strings, small constants, and weights that lie elsewhere (external data). A model has one
// encoding: Parse accepts only what Marshal writes, so that two models of different bytes differ in meaning too, and
// nothing can hide in what a reader skips.
package onnx

import (
	"encoding/binary"
	"math"
)

// Type is an element type of a tensor, with the numbers of TensorProto.DataType.
type Type int32

// The element types hetc's models have.
const (
	Float32  Type = 1
	Uint8    Type = 2
	Int8     Type = 3
	Uint16   Type = 4
	Int32    Type = 6
	Int64    Type = 7
	Bool     Type = 9
	Float16  Type = 10
	BFloat16 Type = 16
	Int4     Type = 22 // two's complement, two elements to a byte, the first in its low half
)

// bits returns the size of one element, 0 for an unknown type.
func (t Type) bits() int64 {
	switch t {
	case Int4:
		return 4
	case Uint8, Int8, Bool:
		return 8
	case Uint16, Float16, BFloat16:
		return 16
	case Float32, Int32:
		return 32
	case Int64:
		return 64
	}
	return 0
}

// Bytes returns the size of n elements one behind the other, 0 for an unknown type.
func (t Type) Bytes(size int64) int64 { return (size*t.bits() + 7) / 8 }

// Versions that the models are written for: what ONNX Runtime 1.24 and later read.
const (
	IR           = 10 // ir_version
	Opset        = 21 // of the operators of ONNX itself, domain ""
	Contrib      = "com.microsoft"
	ContribOpset = 1
)

// Model is a ModelProto.
type Model struct {
	IR       int64
	Producer string
	Opsets   []OpsetID
	Graph    Graph
	Props    []Prop // metadata_props, in order
}

// OpsetID is a version of the operators of a domain; "" are those of ONNX itself.
type OpsetID struct {
	Domain  string
	Version int64
}

// Prop is an entry of the metadata.
type Prop struct{ Key, Value string }

// Prop returns the value of the first entry of that key.
func (m *Model) Prop(key string) (string, bool) {
	for _, prop := range m.Props {
		if prop.Key == key {
			return prop.Value, true
		}
	}
	return "", false
}

// Graph is a GraphProto. Its nodes are in the order of execution.
type Graph struct {
	Name            string
	Nodes           []Node
	Initializers    []Tensor
	Inputs, Outputs []Value
	Inner           []Value // value_info: types of values between nodes, of those whose operator does not say them
}

// Node is one operator. An input that is left out is "".
type Node struct {
	Name   string
	Op     string
	Domain string
	In     []string
	Out    []string
	Attrs  []Attr
}

// Attr returns the attribute of that name.
func (n *Node) Attr(name string) (Attr, bool) {
	for _, attr := range n.Attrs {
		if attr.Name == name {
			return attr, true
		}
	}
	return Attr{}, false
}

// Kind is what an attribute holds, with the numbers of AttributeProto.AttributeType.
type Kind int32

// The kinds of attributes hetc's models have.
const (
	KindFloat  Kind = 1
	KindInt    Kind = 2
	KindString Kind = 3
	KindInts   Kind = 7
)

// Attr is an attribute of a node: one of F, I, S, Ints, by Kind.
type Attr struct {
	Name string
	Kind Kind
	F    float32
	I    int64
	S    string // text or any bytes
	Ints []int64
}

// Int returns an attribute, as are Ints, Float and String.
func Int(name string, value int64) Attr { return Attr{Name: name, Kind: KindInt, I: value} }

// Ints returns an attribute of several numbers.
func Ints(name string, values ...int64) Attr { return Attr{Name: name, Kind: KindInts, Ints: values} }

// Float returns an attribute of one floating-point number.
func Float(name string, value float32) Attr { return Attr{Name: name, Kind: KindFloat, F: value} }

// String returns an attribute of a text.
func String(name string, value string) Attr { return Attr{Name: name, Kind: KindString, S: value} }

// Tensor is an initializer: its bytes are Raw (little endian), or lie elsewhere.
type Tensor struct {
	Name     string
	Type     Type
	Dims     []int64
	Raw      []byte
	External *External
}

// External is where the bytes of a tensor lie: in the file Location.
type External struct {
	Location       string
	Offset, Length int64
}

// Float32s returns a constant [len(v)], or of the given shape; none of both is a scalar.
func Float32s(name string, dims []int64, values ...float32) Tensor {
	tensor := Tensor{Name: name, Type: Float32, Dims: dims}
	for _, value := range values {
		tensor.Raw = binary.LittleEndian.AppendUint32(tensor.Raw, math.Float32bits(value))
	}
	return tensor
}

// Int64s returns a constant [len(v)].
func Int64s(name string, values ...int64) Tensor {
	tensor := Tensor{Name: name, Type: Int64, Dims: []int64{int64(len(values))}}
	for _, value := range values {
		tensor.Raw = binary.LittleEndian.AppendUint64(tensor.Raw, uint64(value))
	}
	return tensor
}

// Value is an input or output of a graph: a tensor of static shape.
type Value struct {
	Name string
	Type Type
	Dims []int64
}
