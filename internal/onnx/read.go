package onnx

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hetc/hetc/internal/diag"
)

// Bounds of what is read. They are far above any model hetc writes.
const (
	MaxBytes = 1 << 30 // of a model, which may hold what a vendor compiled

	maxCount = 1 << 16 // nodes, operands, initializers, inputs, outputs, entries
	maxRank  = 8
	maxDim   = 1 << 31
)

// Parse reads what Marshal wrote. Bytes that are anything else, valid ONNX or not, are refused: unknown fields,
// another order, shapes that are not static.
func Parse(b []byte) (*Model, error) {
	if len(b) > MaxBytes {
		return nil, diag.New(diag.ClassInput, "read onnx model: got %d bytes, want at most %d", len(b), MaxBytes)
	}
	m, err := reader{}.model(b)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read onnx model: %w", err)
	}
	if !bytes.Equal(m.Marshal(), b) {
		return nil, diag.New(diag.ClassInput, "read onnx model: it is not in the form that hetc writes")
	}
	return m, nil
}

// Read reads what another program wrote, as far as hetc's models go: Marshal gives its one encoding. What only describes
// is dropped (documentation, metadata of nodes, sets of operators that no node is of); what the
// model means and hetc does not write is refused (functions, subgraphs, sparse weights, shapes that are not static).
// Attributes, initializers and inner values are sorted by name: programs write them in any order, and no meaning lies in it.
func Read(b []byte) (*Model, error) {
	if len(b) > MaxBytes {
		return nil, diag.New(diag.ClassInput, "read onnx model: got %d bytes, want at most %d", len(b), MaxBytes)
	}
	m, err := reader{foreign: true}.model(b)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read onnx model: %w", err)
	}
	used := map[string]bool{"": true}
	for i := range m.Graph.Nodes {
		n := &m.Graph.Nodes[i]
		used[n.Domain] = true
		slices.SortStableFunc(n.Attrs, func(a, b Attr) int { return strings.Compare(a.Name, b.Name) })
	}
	slices.SortStableFunc(m.Graph.Initializers, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(m.Graph.Inner, func(a, b Value) int { return strings.Compare(a.Name, b.Name) })
	m.Opsets = slices.DeleteFunc(m.Opsets, func(o OpsetID) bool { return !used[o.Domain] })
	slices.SortStableFunc(m.Opsets, func(a, b OpsetID) int { return strings.Compare(a.Domain, b.Domain) })
	return m, nil
}

// reader reads hetc's own models, or foreign ones.
type reader struct{ foreign bool }

// other is for fields without a meaning of hetc's: dropped are those that describe, in foreign models.
func (r reader) other(f field, what string, describing ...protowire.Number) error {
	if r.foreign && slices.Contains(describing, f.num) {
		return nil
	}
	return f.unknown(what)
}

// ints reads integers of a repeated field, which other programs may pack into one.
func (r reader) ints(f field, num protowire.Number, add func(int64) error) (ok bool, err error) {
	if f.is(num, varint) {
		return true, add(f.int)
	}
	if !r.foreign || !f.is(num, message) {
		return false, nil
	}
	for b := f.data; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return true, protowire.ParseError(n)
		}
		if err := add(int64(v)); err != nil {
			return true, err
		}
		b = b[n:]
	}
	return true, nil
}

// field is one field of a message: an integer or bytes.
type field struct {
	num  protowire.Number
	typ  protowire.Type
	int  int64
	data []byte
}

// each calls f with the fields of a message; what names it in errors.
func each(b []byte, what string, f func(field) error) error {
	for count := 0; len(b) > 0; count++ {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return diag.New(diag.ClassInput, "%s: %w", what, protowire.ParseError(n))
		}
		b = b[n:]
		at := field{num: num, typ: typ}
		switch typ {
		case protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			at.int = int64(v)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			at.int = int64(v)
		case protowire.BytesType:
			at.data, n = protowire.ConsumeBytes(b)
		default:
			return diag.New(diag.ClassInput, "%s: field %d has wire type %d", what, num, typ)
		}
		if n < 0 {
			return diag.New(diag.ClassInput, "%s: field %d: %w", what, num, protowire.ParseError(n))
		}
		b = b[n:]
		if count > 8*maxCount {
			return diag.New(diag.ClassInput, "%s: more than %d fields", what, 8*maxCount)
		}
		if err := f(at); err != nil {
			return err
		}
	}
	return nil
}

func (f field) unknown(what string) error {
	return diag.New(diag.ClassInput, "%s: field %d of wire type %d is not one that hetc writes", what, f.num, f.typ)
}

// is reports whether f is that field and has the type it is written with.
func (f field) is(num protowire.Number, typ protowire.Type) bool { return f.num == num && f.typ == typ }

func (f field) text(s *string, what string) error {
	if !utf8.Valid(f.data) {
		return diag.New(diag.ClassInput, "%s: field %d is not UTF-8 text", what, f.num)
	}
	*s = string(f.data)
	return nil
}

// grow appends the value that read makes of a message, up to limit of them.
func grow[T any](s *[]T, limit int, what string, data []byte, read func([]byte) (T, error)) error {
	if len(*s) >= limit {
		return diag.New(diag.ClassInput, "more than %d of %s", limit, what)
	}
	v, err := read(data)
	if err != nil {
		return err
	}
	*s = append(*s, v)
	return nil
}

const (
	varint  = protowire.VarintType
	fixed32 = protowire.Fixed32Type
	message = protowire.BytesType
)

func (r reader) model(b []byte) (*Model, error) {
	m := &Model{}
	err := each(b, "model", func(f field) (err error) {
		switch {
		case f.is(modelIR, varint):
			m.IR = f.int
		case f.is(modelProducer, message):
			err = f.text(&m.Producer, "producer")
		case f.is(modelGraph, message):
			m.Graph, err = r.graph(f.data)
		case f.is(modelOpset, message):
			err = grow(&m.Opsets, maxCount, "opsets", f.data, r.opset)
		case f.is(modelProp, message):
			err = grow(&m.Props, maxCount, "metadata", f.data, r.entry)
		default:
			err = r.other(f, "model", 3, 4, 5, 6)
		}
		return err
	})
	return m, err
}

func (r reader) opset(b []byte) (o OpsetID, err error) {
	err = each(b, "opset", func(f field) error {
		switch {
		case f.is(opsetDomain, message):
			return f.text(&o.Domain, "opset")
		case f.is(opsetVersion, varint):
			o.Version = f.int
			return nil
		}
		return f.unknown("opset")
	})
	return o, err
}

func (r reader) entry(b []byte) (p Prop, err error) {
	err = each(b, "entry", func(f field) error {
		switch {
		case f.is(entryKey, message):
			return f.text(&p.Key, "key")
		case f.is(entryValue, message):
			return f.text(&p.Value, "value")
		}
		return f.unknown("entry")
	})
	return p, err
}

func (r reader) graph(b []byte) (g Graph, err error) {
	err = each(b, "graph", func(f field) error {
		switch {
		case f.is(graphNode, message):
			return grow(&g.Nodes, maxCount, "nodes", f.data, r.node)
		case f.is(graphName, message):
			return f.text(&g.Name, "graph")
		case f.is(graphInitializer, message):
			return grow(&g.Initializers, maxCount, "initializers", f.data, r.tensor)
		case f.is(graphInput, message):
			return grow(&g.Inputs, maxCount, "inputs", f.data, r.value)
		case f.is(graphOutput, message):
			return grow(&g.Outputs, maxCount, "outputs", f.data, r.value)
		case f.is(graphInner, message):
			return grow(&g.Inner, maxCount, "inner values", f.data, r.value)
		}
		return r.other(f, "graph", 10, 14, 16)
	})
	return g, err
}

func (r reader) node(b []byte) (n Node, err error) {
	text := func(b []byte) (s string, err error) {
		err = field{data: b}.text(&s, "operand")
		return s, err
	}
	err = each(b, "node", func(f field) error {
		switch {
		case f.is(nodeIn, message):
			return grow(&n.In, maxCount, "operands", f.data, text)
		case f.is(nodeOut, message):
			return grow(&n.Out, maxCount, "results", f.data, text)
		case f.is(nodeName, message):
			return f.text(&n.Name, "node")
		case f.is(nodeOp, message):
			return f.text(&n.Op, "node")
		case f.is(nodeAttr, message):
			return grow(&n.Attrs, maxCount, "attributes", f.data, r.attr)
		case f.is(nodeDomain, message):
			return f.text(&n.Domain, "node")
		}
		return r.other(f, "node", 6, 9)
	})
	return n, err
}

func (r reader) attr(b []byte) (a Attr, err error) {
	err = each(b, "attribute", func(f field) error {
		switch {
		case f.is(attrName, message):
			return f.text(&a.Name, "attribute")
		case f.is(attrF, fixed32):
			a.F = math.Float32frombits(uint32(f.int))
			return nil
		case f.is(attrI, varint):
			a.I = f.int
			return nil
		case f.is(attrS, message):
			a.S = string(f.data) // bytes: what a vendor compiled is one
			return nil
		case f.is(attrKind, varint):
			a.Kind = Kind(f.int)
			return nil
		}
		if ok, err := r.ints(f, attrInts, func(v int64) error {
			if len(a.Ints) >= maxCount {
				return diag.New(diag.ClassInput, "more than %d integers in an attribute", maxCount)
			}
			a.Ints = append(a.Ints, v)
			return nil
		}); ok {
			return err
		}
		return r.other(f, "attribute", 13)
	})
	switch a.Kind {
	case KindFloat, KindInt, KindString, KindInts:
	default:
		if err == nil {
			err = diag.New(diag.ClassInput, "attribute %q is of kind %d, which hetc does not write", a.Name, a.Kind)
		}
	}
	return a, err
}

// dimension appends one to a shape.
func dimension(dims *[]int64, v int64) error {
	if len(*dims) >= maxRank || v < 0 || v > maxDim {
		return diag.New(diag.ClassInput, "dimension %d is %d, want at most %d of 0..%d", len(*dims), v, maxRank, int64(maxDim))
	}
	*dims = append(*dims, v)
	return nil
}

// elements is the number of a tensor's elements; false where it is beyond all bounds.
func elements(dims []int64) (int64, bool) {
	n := int64(1)
	for _, d := range dims {
		if d != 0 && n > math.MaxInt64/64/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

func (r reader) tensor(b []byte) (t Tensor, err error) {
	var external []Prop
	var where int64
	err = each(b, "initializer", func(f field) error {
		switch {
		case f.is(tensorType, varint):
			t.Type = Type(f.int)
			return nil
		case f.is(tensorName, message):
			return f.text(&t.Name, "initializer")
		case f.is(tensorRaw, message):
			if len(f.data) > 0 {
				t.Raw = bytes.Clone(f.data)
			}
			return nil
		case f.is(tensorExternal, message):
			return grow(&external, 3, "external data", f.data, r.entry)
		case f.is(tensorLocation, varint):
			where = f.int
			return nil
		}
		if ok, err := r.ints(f, tensorDims, func(v int64) error { return dimension(&t.Dims, v) }); ok {
			return err
		}
		return r.other(f, "initializer", 12, 16)
	})
	if err != nil {
		return t, err
	}
	count, ok := elements(t.Dims)
	if !ok || t.Type.bits() == 0 {
		return t, diag.New(diag.ClassInput, "initializer %q is of type %d and shape %v", t.Name, t.Type, t.Dims)
	}
	want := t.Type.Bytes(count)
	if where == 0 {
		if int64(len(t.Raw)) != want {
			return t, diag.New(diag.ClassInput, "initializer %q has %d bytes, want %d", t.Name, len(t.Raw), want)
		}
		return t, nil
	}
	t.External = &External{}
	if len(external) == 3 {
		t.External.Location = external[0].Value
		t.External.Offset, _ = strconv.ParseInt(external[1].Value, 10, 64) // what does not read back is refused with the whole model
		t.External.Length, _ = strconv.ParseInt(external[2].Value, 10, 64)
	}
	if e := t.External; e.Offset < 0 || e.Length != want {
		return t, diag.New(diag.ClassInput, "initializer %q has %d bytes from byte %d of %q, want %d", t.Name, e.Length, e.Offset, e.Location, want)
	}
	return t, nil
}

func (r reader) value(b []byte) (v Value, err error) {
	var tensor, shape []byte
	err = each(b, "value", func(f field) error {
		switch {
		case f.is(valueName, message):
			return f.text(&v.Name, "value")
		case f.is(valueType, message):
			return each(f.data, "type", func(f field) error {
				if !f.is(typeTensor, message) {
					return f.unknown("type")
				}
				tensor = f.data
				return nil
			})
		}
		return r.other(f, "value", 3, 4)
	})
	if err != nil {
		return v, err
	}
	err = each(tensor, "tensor type", func(f field) error {
		switch {
		case f.is(elemType, varint):
			v.Type = Type(f.int)
			return nil
		case f.is(elemShape, message):
			shape = f.data
			return nil
		}
		return f.unknown("tensor type")
	})
	if err != nil {
		return v, err
	}
	err = each(shape, "shape", func(f field) error {
		if !f.is(shapeDim, message) {
			return f.unknown("shape")
		}
		return each(f.data, "dimension", func(f field) error {
			if !f.is(dimValue, varint) {
				return diag.New(diag.ClassInput, "value %q: a dimension is not a number", v.Name)
			}
			return dimension(&v.Dims, f.int)
		})
	})
	if err == nil && v.Type.bits() == 0 {
		err = diag.New(diag.ClassInput, "value %q is of type %d, which hetc does not write", v.Name, v.Type)
	}
	return v, err
}
