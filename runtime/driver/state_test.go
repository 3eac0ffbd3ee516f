package driver

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// mentions fails unless err is an error with the word.
func mentions(t *testing.T, what string, err error, word string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), word) {
		t.Errorf("%s: got %v, want an error with %q", what, err, word)
	}
}

// Operators that speak of other caches, or of rows of another kind, are refused; those without places or a cache are
// not.
func TestStateJoin(t *testing.T) {
	store := op.Op{Kind: op.KVAppend, M: 2, KVHeads: 2, HeadDim: 8, KV: op.F16}
	attend := op.Op{Kind: op.Attention, M: 2, Heads: 4, KVHeads: 2, HeadDim: 8, KV: op.F16, Context: 8}
	for _, test := range []struct {
		name   string
		second op.Op
		change func(o *op.Op)
		word   string
	}{
		{"the same cache", attend, func(*op.Op) {}, ""},
		{"no cache", op.Op{Kind: op.Add, M: 2, N: 8}, func(*op.Op) {}, ""},
		{"another type", attend, func(o *op.Op) { o.KV = op.F32 }, "f32"},
		{"other heads", attend, func(o *op.Op) { o.KVHeads = 1 }, "1 heads"},
		{"other columns", attend, func(o *op.Op) { o.HeadDim = 16 }, "16"},
		{"rows of a sequence each", attend, func(o *op.Op) { o.Batch = true }, "one sequence"},
		{"a rotation of such rows", op.Op{Kind: op.Rope, M: 2, Heads: 4, KVHeads: 2, HeadDim: 8, Batch: true},
			func(*op.Op) {}, "one sequence"},
	} {
		state := State{}
		if err := state.Join(&store); err != nil {
			t.Fatal(err)
		}
		test.change(&test.second)
		err := state.Join(&test.second)
		if test.word != "" {
			mentions(t, test.name, err, test.word)
		} else if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A state of a graph with attention follows its calls: one sequence of a cache of three, the only sequence of another
// cache, and a batch.
func TestStateOfCalls(t *testing.T) {
	attend := op.Op{Kind: op.Attention, M: 2, Heads: 2, KVHeads: 2, HeadDim: 4, KV: op.F16, Context: 8}
	memory, err := AllocHost("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	const context, apart = 8, 192 // a cache of a sequence has 2 heads * 8 positions * 4 columns * 2 bytes = 128 bytes
	bindings := func(sequences int, scalars Scalars) *Bindings {
		side := View{Buffer: memory, Type: op.F16, Offset: 64, Rows: 2 * context, Cols: 4, Stride: 4}
		return &Bindings{In: make([]View, 1), Out: make([]View, 1), K: side, V: side, MaxContext: context,
			Scalars: &scalars, Sequences: sequences, SequenceBytes: apart}
	}
	state := func(batch, long bool) (*State, op.Graph) {
		operator, turn := attend, op.Op{Kind: op.Rope, M: 2, Heads: 2, KVHeads: 2, HeadDim: 4}
		operator.Batch, turn.Batch = batch, batch
		if long {
			turn.LongFrom = 4
		}
		out := &State{}
		for _, one := range []*op.Op{&turn, &operator} {
			if err := out.Join(one); err != nil {
				t.Fatal(err)
			}
		}
		return out, op.Single(operator, "")
	}
	bound := func(s *State, g *op.Graph, b *Bindings) (keys []byte, err error) {
		rows, err := s.Bind(b, g)
		if err != nil || rows == 0 {
			return nil, err
		}
		if rows != 2 {
			t.Errorf("%d rows in use, want 2", rows)
		}
		keys, _, err = s.BindCaches(b, rows)
		return keys, err
	}

	s, graph := state(false, true)
	keys, err := bound(s, &graph, bindings(3, Scalars{Pos: 5, Rows: 7, Seq: 9, Sequence: 2}))
	if err != nil || len(keys) != 2*apart+128 || s.PerSeq != apart/2 {
		t.Errorf("three sequences: %d bytes, %d elements apart, %v", len(keys), s.PerSeq, err)
	}
	if at := s.At(1); at != (Place{Sequence: 2, Pos: 6}) || s.Seq(1) != 9 {
		t.Errorf("row 1 of a sequence: %+v of %d", at, s.Seq(1))
	}
	keys, err = bound(s, &graph, bindings(1, Scalars{Pos: 0, Rows: 2, Seq: 2}))
	if err != nil || len(keys) != 128 || s.PerSeq != 0 {
		t.Errorf("one sequence: %d bytes, %d elements apart, %v", len(keys), s.PerSeq, err)
	}
	_, err = bound(s, &graph, bindings(1, Scalars{Pos: 7, Rows: 2, Seq: 9}))
	mentions(t, "beyond the cache", err, "7..8")
	_, err = bound(s, &graph, bindings(1, Scalars{Pos: 2, Rows: 2, Seq: 2}))
	mentions(t, "a sequence that ends before the row", err, "position 2")
	_, err = bound(s, &graph, bindings(3, Scalars{Rows: 2, Seq: 2, Sequence: 3}))
	mentions(t, "a sequence too many", err, "0..2")
	if keys, err = bound(s, &graph, bindings(1, Scalars{Pos: 7})); err != nil || keys != nil {
		t.Errorf("no rows: %d bytes, %v", len(keys), err)
	}

	s, graph = state(true, true)
	places := []Place{{Sequence: 1, Pos: 3}, {Sequence: 0, Pos: 7}}
	keys, err = bound(s, &graph, bindings(2, Scalars{Rows: 2, Batch: places}))
	if err != nil || len(keys) != apart+128 {
		t.Errorf("a batch: %d bytes, %v", len(keys), err)
	}
	if at := s.At(1); at != places[1] || s.Seq(1) != 8 {
		t.Errorf("row 1 of a batch: %+v of %d", at, s.Seq(1))
	}
	_, err = bound(s, &graph, bindings(1, Scalars{Rows: 2, Batch: places}))
	mentions(t, "a batch of more sequences than there are", err, "sequence 1")
	other := bindings(2, Scalars{Rows: 2, Batch: places})
	other.V.Type = op.F32
	_, err = bound(s, &graph, other)
	mentions(t, "values of another type", err, `"v"`)
}
