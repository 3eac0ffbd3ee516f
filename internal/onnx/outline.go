package onnx

import "github.com/hetc/hetc/internal/diag"

// Outline reads what is executed by a model that somebody else wrote: producer, versions, metadata, and the graph's
// nodes with their attributes of numbers and strings (a string may be any bytes). Fields that hetc does not know are
// skipped, as are the names and shapes of values and the weights: only Parse knows all that a model says.
func Outline(b []byte) (*Model, error) {
	m := &Model{}
	err := each(b, "model", func(f field) (err error) {
		switch {
		case f.is(modelIR, varint):
			m.IR = f.int
		case f.is(modelProducer, message):
			m.Producer = string(f.data)
		case f.is(modelGraph, message):
			m.Graph, err = outlineGraph(f.data)
		case f.is(modelOpset, message):
			err = grow(&m.Opsets, maxCount, "opsets", f.data, reader{}.opset)
		case f.is(modelProp, message):
			err = grow(&m.Props, maxCount, "metadata", f.data, reader{}.entry)
		}
		return err
	})
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read onnx model: %w", err)
	}
	return m, nil
}

func outlineGraph(b []byte) (g Graph, err error) {
	err = each(b, "graph", func(f field) error {
		switch {
		case f.is(graphNode, message):
			return grow(&g.Nodes, maxCount, "nodes", f.data, outlineNode)
		case f.is(graphName, message):
			g.Name = string(f.data)
		}
		return nil
	})
	return g, err
}

func outlineNode(b []byte) (n Node, err error) {
	err = each(b, "node", func(f field) error {
		switch {
		case f.is(nodeIn, message):
			n.In = append(n.In, string(f.data))
		case f.is(nodeOut, message):
			n.Out = append(n.Out, string(f.data))
		case f.is(nodeName, message):
			n.Name = string(f.data)
		case f.is(nodeOp, message):
			n.Op = string(f.data)
		case f.is(nodeAttr, message):
			return grow(&n.Attrs, maxCount, "attributes", f.data, outlineAttr)
		case f.is(nodeDomain, message):
			n.Domain = string(f.data)
		}
		return nil
	})
	return n, err
}

func outlineAttr(b []byte) (a Attr, err error) {
	err = each(b, "attribute", func(f field) error {
		switch {
		case f.is(attrName, message):
			a.Name = string(f.data)
		case f.is(attrI, varint):
			a.I = f.int
		case f.is(attrS, message):
			a.S = string(f.data)
		case f.is(attrKind, varint):
			a.Kind = Kind(f.int)
		}
		return nil
	})
	return a, err
}
