package driver

import (
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/planir/op"
)

// State collects from the operators of a graph how they use the cache and where rows lie, and holds the places of the
// current call. Executables whose kernels read places and caches by themselves embed it.
type State struct {
	KV       op.Type // of the cache, "" for a graph without one
	KVHeads  int
	HeadDim  int
	Placed   bool // operators ask for the places of rows
	Batch    bool // rows are of a sequence each, and have their places in Scalars.Batch
	NeedsSeq bool // a rotation depends on the length of the sequence

	Scalars    Scalars // of the current call
	MaxContext int     // positions of its caches
	PerSeq     int     // elements of its caches from one sequence to the next, 0 where there is one sequence
}

// Join adds an operator. It refuses one that contradicts those before it, because a call has one cache and one kind of
// rows.
func (s *State) Join(operator *op.Op) error {
	if operator.Kind.Has("batch") || operator.Kind.Has("context") {
		if s.Placed && s.Batch != operator.Batch {
			return errors.New("rows are of one sequence for some nodes, and of one each for others")
		}
		s.Placed, s.Batch = true, operator.Batch
	}
	s.NeedsSeq = s.NeedsSeq || operator.LongFrom > 0
	if !operator.Kind.Has("kv") {
		return nil
	}
	if s.KV != "" && (s.KV != operator.KV || s.KVHeads != operator.KVHeads || s.HeadDim != operator.HeadDim) {
		return fmt.Errorf("cache %s of %d heads of %d columns differs from that of another node, %s of %d heads of %d",
			operator.KV, operator.KVHeads, operator.HeadDim, s.KV, s.KVHeads, s.HeadDim)
	}
	s.KV, s.KVHeads, s.HeadDim = operator.KV, operator.KVHeads, operator.HeadDim
	return nil
}

// Bind makes the scalars of a call current, after checking that the bindings are those of the graph and that the rows
// in use have places. It returns how many rows these are; with 0 the call has nothing to do.
func (s *State) Bind(b *Bindings, g *op.Graph) (rows int, err error) {
	if err := b.Matches(g); err != nil {
		return 0, err
	}
	s.Scalars = *b.Scalars
	pos, seq := s.Scalars.Pos, s.Scalars.Seq
	if pos > math.MaxInt32 {
		return 0, fmt.Errorf("got position %d, want at most %d", pos, math.MaxInt32)
	}
	rows = min(g.Rows(), s.Scalars.Rows)
	switch {
	case rows == 0:
	case s.Batch:
		err = b.CheckPlaces(rows, s.KV != "")
	case s.NeedsSeq && seq <= pos:
		err = fmt.Errorf("a sequence of %d positions does not reach position %d, and the rotation depends on its length",
			seq, pos)
	}
	return rows, err
}

// BindCaches makes the caches of a bound call current, after checking that they hold all sequences. keys and values are
// their memory, of all sequences.
func (s *State) BindCaches(b *Bindings, rows int) (keys, values []byte, err error) {
	if !s.Batch {
		err = b.CheckSpan(rows)
	} else if b.MaxContext < 1 {
		err = fmt.Errorf("a cache of %d positions, want at least 1", b.MaxContext)
	}
	if err != nil {
		return nil, nil, err
	}
	s.MaxContext, s.PerSeq = b.MaxContext, 0
	if keys, err = s.bindCache(b, &b.K, "k"); err != nil {
		return nil, nil, err
	}
	if values, err = s.bindCache(b, &b.V, "v"); err != nil {
		return nil, nil, err
	}
	return keys, values, nil
}

// bindCache binds one side of the cache for BindCaches.
func (s *State) bindCache(b *Bindings, view *View, name string) ([]byte, error) {
	held, err := b.CheckCache(view, name, s.KV, s.KVHeads, s.HeadDim)
	if err != nil || b.Sequences < 2 {
		return held, err
	}
	s.PerSeq = int(b.SequenceBytes / int64(view.Type.Bytes()))
	others := int64(b.Sequences-1) * b.SequenceBytes
	return view.Buffer.Bytes()[view.Offset : view.Offset+others+int64(len(held))], nil
}

// At returns the sequence and position of a row in use.
func (s *State) At(row int) Place {
	if s.Batch {
		return s.Scalars.Batch[row]
	}
	return Place{Sequence: s.Scalars.Sequence, Pos: s.Scalars.Pos + row}
}

// Seq returns the length of a row's sequence on which its rotation depends: in a batch up to the row, else with all of
// the prompt.
func (s *State) Seq(row int) int {
	if s.Batch {
		return s.Scalars.Batch[row].Pos + 1
	}
	return s.Scalars.Seq
}
