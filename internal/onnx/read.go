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
func Parse(data []byte) (*Model, error) {
	if len(data) > MaxBytes {
		return nil, diag.New(diag.ClassInput, "read onnx model: got %d bytes, want at most %d", len(data), MaxBytes)
	}
	model, err := reader{}.model(data)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read onnx model: %w", err)
	}
	if !bytes.Equal(model.Marshal(), data) {
		return nil, diag.New(diag.ClassInput, "read onnx model: it is not in the form that hetc writes")
	}
	return model, nil
}

// Read reads what another program wrote, as far as hetc's models go: Marshal gives its one encoding. What only
// describes is dropped (documentation, metadata of nodes, sets of operators that no node is of); what the model means
// and hetc does not write is refused (functions, subgraphs, sparse weights, shapes that are not static). Attributes,
// initializers and inner values are sorted by name: programs write them in any order, and no meaning lies in it.
func Read(data []byte) (*Model, error) {
	if len(data) > MaxBytes {
		return nil, diag.New(diag.ClassInput, "read onnx model: got %d bytes, want at most %d", len(data), MaxBytes)
	}
	model, err := reader{foreign: true}.model(data)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read onnx model: %w", err)
	}
	used := map[string]bool{"": true}
	for i := range model.Graph.Nodes {
		node := &model.Graph.Nodes[i]
		used[node.Domain] = true
		slices.SortStableFunc(node.Attrs, func(left, right Attr) int { return strings.Compare(left.Name, right.Name) })
	}
	byName(model.Graph.Initializers, func(tensor Tensor) string { return tensor.Name })
	byName(model.Graph.Inner, func(value Value) string { return value.Name })
	model.Opsets = slices.DeleteFunc(model.Opsets, func(opset OpsetID) bool { return !used[opset.Domain] })
	byName(model.Opsets, func(opset OpsetID) string { return opset.Domain })
	return model, nil
}

// byName sorts what has a name.
func byName[T any](list []T, name func(T) string) {
	slices.SortStableFunc(list, func(left, right T) int { return strings.Compare(name(left), name(right)) })
}

// reader reads hetc's own models, or foreign ones.
type reader struct{ foreign bool }

// other is for fields without a meaning of hetc's: dropped are those that describe, in foreign models.
func (r reader) other(part field, what string, describing ...protowire.Number) error {
	if r.foreign && slices.Contains(describing, part.num) {
		return nil
	}
	return part.unknown(what)
}

// ints reads integers of a repeated field, which other programs may pack into one.
func (r reader) ints(part field, num protowire.Number, add func(int64) error) (ok bool, err error) {
	if part.is(num, varint) {
		return true, add(part.int)
	}
	if !r.foreign || !part.is(num, message) {
		return false, nil
	}
	for data := part.data; len(data) > 0; {
		value, size := protowire.ConsumeVarint(data)
		if size < 0 {
			return true, protowire.ParseError(size)
		}
		if err := add(int64(value)); err != nil {
			return true, err
		}
		data = data[size:]
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
func each(data []byte, what string, visit func(field) error) error {
	for count := 0; len(data) > 0; count++ {
		num, typ, size := protowire.ConsumeTag(data)
		if size < 0 {
			return diag.New(diag.ClassInput, "%s: %w", what, protowire.ParseError(size))
		}
		data = data[size:]
		at := field{num: num, typ: typ}
		switch typ {
		case protowire.VarintType:
			var value uint64
			value, size = protowire.ConsumeVarint(data)
			at.int = int64(value)
		case protowire.Fixed32Type:
			var value uint32
			value, size = protowire.ConsumeFixed32(data)
			at.int = int64(value)
		case protowire.BytesType:
			at.data, size = protowire.ConsumeBytes(data)
		default:
			return diag.New(diag.ClassInput, "%s: field %d has wire type %d", what, num, typ)
		}
		if size < 0 {
			return diag.New(diag.ClassInput, "%s: field %d: %w", what, num, protowire.ParseError(size))
		}
		data = data[size:]
		if count > 8*maxCount {
			return diag.New(diag.ClassInput, "%s: more than %d fields", what, 8*maxCount)
		}
		if err := visit(at); err != nil {
			return err
		}
	}
	return nil
}

// unknown returns the error of a field that Marshal does not write.
func (f field) unknown(what string) error {
	return diag.New(diag.ClassInput, "%s: field %d of wire type %d is not one that hetc writes", what, f.num, f.typ)
}

// is reports whether f is that field and has the type it is written with.
func (f field) is(num protowire.Number, typ protowire.Type) bool { return f.num == num && f.typ == typ }

// text stores a field as text; what names it in errors.
func (f field) text(to *string, what string) error {
	if !utf8.Valid(f.data) {
		return diag.New(diag.ClassInput, "%s: field %d is not UTF-8 text", what, f.num)
	}
	*to = string(f.data)
	return nil
}

// grow appends the value that read makes of a message, up to limit of them.
func grow[T any](list *[]T, limit int, what string, data []byte, read func([]byte) (T, error)) error {
	if len(*list) >= limit {
		return diag.New(diag.ClassInput, "more than %d of %s", limit, what)
	}
	item, err := read(data)
	if err != nil {
		return err
	}
	*list = append(*list, item)
	return nil
}

const (
	varint  = protowire.VarintType
	fixed32 = protowire.Fixed32Type
	message = protowire.BytesType
)

// model reads a whole model. Each message has a reader of its own below; the fields that foreign models may have beside
// hetc's are listed by number in the last line.
func (r reader) model(data []byte) (*Model, error) {
	model := &Model{}
	err := each(data, "model", func(part field) (err error) {
		switch {
		case part.is(modelIR, varint):
			model.IR = part.int
		case part.is(modelProducer, message):
			err = part.text(&model.Producer, "producer")
		case part.is(modelGraph, message):
			model.Graph, err = r.graph(part.data)
		case part.is(modelOpset, message):
			err = grow(&model.Opsets, maxCount, "opsets", part.data, r.opset)
		case part.is(modelProp, message):
			err = grow(&model.Props, maxCount, "metadata", part.data, r.entry)
		default:
			err = r.other(part, "model", 3, 4, 5, 6)
		}
		return err
	})
	return model, err
}

// opset reads a set of operators that the model uses, with its version.
func (r reader) opset(data []byte) (opset OpsetID, err error) {
	err = each(data, "opset", func(part field) error {
		switch {
		case part.is(opsetDomain, message):
			return part.text(&opset.Domain, "opset")
		case part.is(opsetVersion, varint):
			opset.Version = part.int
			return nil
		}
		return part.unknown("opset")
	})
	return opset, err
}

// entry reads a key with its value.
func (r reader) entry(data []byte) (prop Prop, err error) {
	err = each(data, "entry", func(part field) error {
		switch {
		case part.is(entryKey, message):
			return part.text(&prop.Key, "key")
		case part.is(entryValue, message):
			return part.text(&prop.Value, "value")
		}
		return part.unknown("entry")
	})
	return prop, err
}

// graph reads the only graph of a model.
func (r reader) graph(data []byte) (graph Graph, err error) {
	err = each(data, "graph", func(part field) error {
		switch {
		case part.is(graphNode, message):
			return grow(&graph.Nodes, maxCount, "nodes", part.data, r.node)
		case part.is(graphName, message):
			return part.text(&graph.Name, "graph")
		case part.is(graphInitializer, message):
			return grow(&graph.Initializers, maxCount, "initializers", part.data, r.tensor)
		case part.is(graphInput, message):
			return grow(&graph.Inputs, maxCount, "inputs", part.data, r.value)
		case part.is(graphOutput, message):
			return grow(&graph.Outputs, maxCount, "outputs", part.data, r.value)
		case part.is(graphInner, message):
			return grow(&graph.Inner, maxCount, "inner values", part.data, r.value)
		}
		return r.other(part, "graph", 10, 14, 16)
	})
	return graph, err
}

// node reads an operator: names of operands and results, and attributes.
func (r reader) node(data []byte) (node Node, err error) {
	text := func(data []byte) (name string, err error) {
		err = field{data: data}.text(&name, "operand")
		return name, err
	}
	err = each(data, "node", func(part field) error {
		switch {
		case part.is(nodeIn, message):
			return grow(&node.In, maxCount, "operands", part.data, text)
		case part.is(nodeOut, message):
			return grow(&node.Out, maxCount, "results", part.data, text)
		case part.is(nodeName, message):
			return part.text(&node.Name, "node")
		case part.is(nodeOp, message):
			return part.text(&node.Op, "node")
		case part.is(nodeAttr, message):
			return grow(&node.Attrs, maxCount, "attributes", part.data, r.attr)
		case part.is(nodeDomain, message):
			return part.text(&node.Domain, "node")
		}
		return r.other(part, "node", 6, 9)
	})
	return node, err
}

// attr reads an attribute. Each kind has a field of its own for its value.
func (r reader) attr(data []byte) (attr Attr, err error) {
	err = each(data, "attribute", func(part field) error {
		switch {
		case part.is(attrName, message):
			return part.text(&attr.Name, "attribute")
		case part.is(attrF, fixed32):
			attr.F = math.Float32frombits(uint32(part.int))
			return nil
		case part.is(attrI, varint):
			attr.I = part.int
			return nil
		case part.is(attrS, message):
			attr.S = string(part.data) // bytes: what a vendor compiled is one
			return nil
		case part.is(attrKind, varint):
			attr.Kind = Kind(part.int)
			return nil
		}
		if ok, err := r.ints(part, attrInts, func(number int64) error {
			if len(attr.Ints) >= maxCount {
				return diag.New(diag.ClassInput, "more than %d integers in an attribute", maxCount)
			}
			attr.Ints = append(attr.Ints, number)
			return nil
		}); ok {
			return err
		}
		return r.other(part, "attribute", 13)
	})
	switch attr.Kind {
	case KindFloat, KindInt, KindString, KindInts:
	default:
		if err == nil {
			err = diag.New(diag.ClassInput,
				"attribute %q is of kind %d, which hetc does not write", attr.Name, attr.Kind)
		}
	}
	return attr, err
}

// dimension appends one to a shape.
func dimension(dims *[]int64, number int64) error {
	if len(*dims) >= maxRank || number < 0 || number > maxDim {
		return diag.New(diag.ClassInput,
			"dimension %d is %d, want at most %d of 0..%d", len(*dims), number, maxRank, int64(maxDim))
	}
	*dims = append(*dims, number)
	return nil
}

// elements returns the number of a tensor's elements; false where it is beyond all bounds.
func elements(dims []int64) (int64, bool) {
	count := int64(1)
	for _, size := range dims {
		if size != 0 && count > math.MaxInt64/64/size {
			return 0, false
		}
		count *= size
	}
	return count, true
}

// tensor reads an initializer, whose bytes are in the model or in a file beside it.
func (r reader) tensor(data []byte) (tensor Tensor, err error) {
	var external []Prop
	var where int64
	err = each(data, "initializer", func(part field) error {
		switch {
		case part.is(tensorType, varint):
			tensor.Type = Type(part.int)
			return nil
		case part.is(tensorName, message):
			return part.text(&tensor.Name, "initializer")
		case part.is(tensorRaw, message):
			if len(part.data) > 0 {
				tensor.Raw = bytes.Clone(part.data)
			}
			return nil
		case part.is(tensorExternal, message):
			return grow(&external, 3, "external data", part.data, r.entry)
		case part.is(tensorLocation, varint):
			where = part.int
			return nil
		}
		add := func(number int64) error { return dimension(&tensor.Dims, number) }
		if ok, err := r.ints(part, tensorDims, add); ok {
			return err
		}
		return r.other(part, "initializer", 12, 16)
	})
	if err != nil {
		return tensor, err
	}
	// What the bytes are compared with: their number follows from type and shape, wherever they lie.
	count, ok := elements(tensor.Dims)
	if !ok || tensor.Type.bits() == 0 {
		return tensor, diag.New(diag.ClassInput,
			"initializer %q is of type %d and shape %v", tensor.Name, tensor.Type, tensor.Dims)
	}
	if where == 0 {
		if want := tensor.Type.Bytes(count); int64(len(tensor.Raw)) != want {
			return tensor, diag.New(diag.ClassInput,
				"initializer %q has %d bytes, want %d", tensor.Name, len(tensor.Raw), want)
		}
		return tensor, nil
	}
	return tensor, tensor.outside(external, count)
}

// outside notes that a tensor of so many elements lies in another file, as its entries say.
func (t *Tensor) outside(entries []Prop, count int64) error {
	external := &External{}
	if len(entries) == 3 {
		external.Location = entries[0].Value
		// What does not read back is refused with the whole model.
		external.Offset, _ = strconv.ParseInt(entries[1].Value, 10, 64)
		external.Length, _ = strconv.ParseInt(entries[2].Value, 10, 64)
	}
	t.External = external
	if want := t.Type.Bytes(count); external.Offset < 0 || external.Length != want {
		return diag.New(diag.ClassInput, "initializer %q has %d bytes from byte %d of %q, want %d",
			t.Name, external.Length, external.Offset, external.Location, want)
	}
	return nil
}

// value reads what a graph says of an operand. Its type is nested four messages deep: type, tensor, shape, dimension.
func (r reader) value(data []byte) (value Value, err error) {
	var tensor, shape []byte
	err = each(data, "value", func(part field) error {
		switch {
		case part.is(valueName, message):
			return part.text(&value.Name, "value")
		case part.is(valueType, message):
			return each(part.data, "type", func(part field) error {
				if !part.is(typeTensor, message) {
					return part.unknown("type")
				}
				tensor = part.data
				return nil
			})
		}
		return r.other(part, "value", 3, 4)
	})
	if err != nil {
		return value, err
	}
	// Fields may come in any order, so the parts are kept until the name is known, which errors tell.
	err = each(tensor, "tensor type", func(part field) error {
		switch {
		case part.is(elemType, varint):
			value.Type = Type(part.int)
			return nil
		case part.is(elemShape, message):
			shape = part.data
			return nil
		}
		return part.unknown("tensor type")
	})
	if err != nil {
		return value, err
	}
	err = each(shape, "shape", func(part field) error {
		if !part.is(shapeDim, message) {
			return part.unknown("shape")
		}
		return each(part.data, "dimension", func(part field) error {
			if !part.is(dimValue, varint) {
				return diag.New(diag.ClassInput, "value %q: a dimension is not a number", value.Name)
			}
			return dimension(&value.Dims, part.int)
		})
	})
	if err == nil && value.Type.bits() == 0 {
		err = diag.New(diag.ClassInput, "value %q is of type %d, which hetc does not write", value.Name, value.Type)
	}
	return value, err
}
