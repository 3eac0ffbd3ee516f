package quality

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// Heads is what a step of attention in float32 has computed: queries, keys and values behind rotation, and the result,
// which an observer may change. All rows begin at the first position, so that keys and values of every position are
// there.
type Heads struct {
	op.Op
	Layer int
	Rows  int

	qkv, out       []float32
	stride, result int // of their rows
}

// headsOf returns the attention of a step, nil where it has none. A step that does not begin with an empty cache, or
// whose values are not float32, is an error.
func headsOf(seen *executor.Observed) (*Heads, error) {
	index := slices.IndexFunc(seen.Graph.Nodes, func(node op.Node) bool { return node.Op.Kind == op.Attention })
	if index < 0 {
		return nil, nil
	}
	node := &seen.Graph.Nodes[index]
	// Rotation happens in place, so what the attention reads is what the step has left there.
	from := slices.IndexFunc(seen.Graph.Inputs, func(value op.Value) bool { return value.Name == node.In[0] })
	to := slices.IndexFunc(seen.Graph.Outputs, func(value op.Value) bool { return value.Name == node.Out[0] })
	if from < 0 || to < 0 || seen.In[from].Type != op.F32 || seen.Out[to].Type != op.F32 || node.Op.Batch {
		return nil, diag.New(diag.ClassRun, "observe %q: attention does not read and write float32 values of its step",
			seen.Node)
	}
	heads := &Heads{Op: node.Op, Layer: seen.Layer, Rows: seen.Rows, stride: seen.In[from].Stride,
		result: seen.Out[to].Stride}
	var err error
	if heads.qkv, err = mem.View[float32](seen.In[from].Bytes()); err != nil {
		return nil, err
	}
	heads.out, err = mem.View[float32](seen.Out[to].Bytes())
	return heads, err
}

// group returns how many query heads share a key head.
func (h *Heads) group() int { return h.Heads / h.KVHeads }

// Query returns the query of a head in a row, [HeadDim].
func (h *Heads) Query(row, head int) []float32 {
	group := h.group()
	at := row*h.stride + ((head/group)*(group+2)+head%group)*h.HeadDim
	return h.qkv[at : at+h.HeadDim]
}

// Key returns the key of a key head at a position, [HeadDim].
func (h *Heads) Key(pos, kvHead int) []float32 {
	group := h.group()
	at := pos*h.stride + (kvHead*(group+2)+group)*h.HeadDim
	return h.qkv[at : at+h.HeadDim]
}

// value returns the value of a key head at a position.
func (h *Heads) value(pos, kvHead int) []float32 {
	group := h.group()
	at := pos*h.stride + (kvHead*(group+2)+group+1)*h.HeadDim
	return h.qkv[at : at+h.HeadDim]
}

// Result returns what a head has computed in a row, [HeadDim]. It may be changed.
func (h *Heads) Result(row, head int) []float32 {
	at := row*h.result + head*h.HeadDim
	return h.out[at : at+h.HeadDim]
}

// scale returns the factor of scores.
func (h *Heads) scale() float32 {
	if h.Op.Scale != 0 {
		return float32(h.Op.Scale)
	}
	return float32(1 / math.Sqrt(float64(h.HeadDim)))
}

// first returns the first position that the query of a row sees.
func (h *Heads) first(row int) int {
	if h.Window > 0 {
		return max(0, row+1-h.Window)
	}
	return 0
}

// each calls f for every query head and block of rows, on all cores; f may change the results of these rows.
func (h *Heads) each(rows int, f func(head, from, to int)) {
	blocks := (h.Rows + rows - 1) / rows
	var next atomic.Int64
	var done sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		done.Go(func() {
			for {
				task := int(next.Add(1)) - 1
				if task >= blocks*h.Heads {
					return
				}
				// The last blocks see most positions and take longest.
				block := blocks - 1 - task/h.Heads
				f(task%h.Heads, block*rows, min(h.Rows, (block+1)*rows))
			}
		})
	}
	done.Wait()
}

// Interventions change what attention computes while a machine executes windows, each in one call from an empty cache:
// pass Observe to the executor. Nothing is changed while Change is nil. Execution is in float32 on one lane.
type Interventions struct {
	// Change is called for every step of attention.
	Change func(heads *Heads)

	err error
}

// Observe hands steps of attention over to Change. The first error is kept for Err.
func (i *Interventions) Observe(seen executor.Observed) {
	if i.Change == nil || i.err != nil {
		return
	}
	heads, err := headsOf(&seen)
	if err != nil {
		i.err = fmt.Errorf("layer %d: %w", seen.Layer, err)
	} else if heads != nil {
		i.Change(heads)
	}
}

// Err returns the first error of Observe.
func (i *Interventions) Err() error { return i.err }

// WithoutHead returns a change that removes one query head of a layer, all of them for head < 0: its result is zero.
func WithoutHead(layer, head int) func(*Heads) {
	return func(heads *Heads) {
		if heads.Layer != layer {
			return
		}
		for row := range heads.Rows {
			for number := range heads.Heads {
				if head < 0 || head == number {
					clear(heads.Result(row, number))
				}
			}
		}
	}
}
