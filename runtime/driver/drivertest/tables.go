package drivertest

import (
	"fmt"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// rowsOf yields the rows of a table in memory.
type rowsOf struct {
	table []byte
	bytes int // of a row
}

// Row implements driver.Rows.
func (r rowsOf) Row(k int) (row []byte, copied bool, err error) {
	if from := k * r.bytes; k >= 0 && from < len(r.table) {
		return r.table[from : from+r.bytes], false, nil
	}
	return nil, false, fmt.Errorf("no row %d", k)
}

// A driver.TableReader embeds by the rows of a table, as by the whole table, and says which token has a row that cannot
// be had. Other processors refuse to load such weights, and all refuse rows of weights that are read whole.
func testTables(t *testing.T, f *Factory) {
	refused := &refusals{open(t, f, f.Config)}
	tables, reader := refused.proc.(driver.TableReader)
	reader = reader && tables.ReadsTables()
	byRow := func(tr *trial, bytes int) driver.Weights {
		return changed(tr.packed, func(p *driver.Packed) { p.Rows, p.Bytes = rowsOf{p.Bytes, bytes}, nil })
	}
	for _, table := range []op.Type{op.F32, op.F16, op.BF16} {
		operator := op.Op{Kind: op.Embed, M: 5, K: 53, N: 40, Table: table, Scale: 11.3}
		if refused.caps.Supports(operator) != nil {
			continue
		}
		tr := refused.newTrial(single(refused.caps, operator), 0, 9)
		artifact, err := refused.compile(tr.graph, tr.packed)
		if err != nil {
			t.Fatal(err)
		}
		weights := byRow(tr, operator.N*table.Bytes())
		if !reader {
			refused.refuse("single rows of a table", artifact, weights, "rows", tr.graph.Weights[0].Name)
			continue
		}
		if tr.exe, err = refused.session.load(artifact, weights); err != nil {
			t.Fatal(err)
		}
		tr.check(place{gap: 3, below: 1}, scalars(0, 5))
		tr.exe.Close()
		// Of a table without its last row the others remain.
		weights[0].Rows = rowsOf{tr.packed[0].Bytes[:52*operator.N*table.Bytes()], operator.N * table.Bytes()}
		if tr.exe, err = refused.session.load(artifact, weights); err != nil {
			t.Fatal(err)
		}
		ids := tr.vals[tr.graph.Inputs[0].Name]
		for i := range ids.v {
			ids.v[i] = float64(51 + i/3)
		}
		bound := tr.bind(place{}, scalars(0, 5))
		_, err = refused.run(tr.exe, &bound.b)
		mentions(t, fmt.Sprintf("a missing row of a table of %s", table), err, "52", "no row")
		tr.exe.Close()
	}
	operator := op.Op{Kind: op.Norm, M: 2, N: 64}
	if refused.caps.Supports(operator) != nil {
		return
	}
	tr := refused.newTrial(single(refused.caps, operator), 0, 8)
	artifact, err := refused.compile(tr.graph, tr.packed)
	if err != nil {
		t.Fatal(err)
	}
	weights := byRow(tr, len(tr.packed[0].Bytes))
	refused.refuse("single rows of a gain", artifact, weights, "rows", tr.graph.Weights[0].Name)
}
