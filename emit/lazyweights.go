package emit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// packedGroup is the packed weights of a group, and the samples of those of its graphs that are tried.
type packedGroup struct {
	region  *mem.Region
	weights driver.Weights
	samples []*sample // of each graph, nil for none
}

// close frees the weights; a nil group has none.
func (w *packedGroup) close() error {
	if w == nil {
		return nil
	}
	return w.region.Close()
}

// digests identify what a group reads.
type digests struct {
	Weights string   `json:"weights"`
	Samples []string `json:"samples"` // of each graph, "" for none
}

// digests hashes what was packed, and the inputs of the samples.
func (w *packedGroup) digests() digests {
	found := digests{Weights: w.weights.Digest(), Samples: make([]string, len(w.samples))}
	for i, sample := range w.samples {
		if sample != nil {
			found.Samples[i] = driver.SampleDigest(sample.in)
		}
	}
	return found
}

// lazyWeights is what a group reads. Its digests may be known from a memo; then it is packed only if a compiler, or the
// judgement of a sample, needs it.
type lazyWeights struct {
	compiler *groupCompiler
	group    *planir.GraphGroup
	key      string  // of the memo
	known    digests // from the memo, or of what was packed
	once     sync.Once
	loaded   *packedGroup // nil: not packed
	err      error        // of packing, or of the memo
}

// errStaleMemo says that a memo does not fit what was made.
var errStaleMemo = errors.New("the memo is of other weights")

// weightsOf returns what a group reads, with its digests: from the memo, or packed now.
func (r *groupCompiler) weightsOf(ctx context.Context, g *planir.GraphGroup) (*lazyWeights, error) {
	weights := &lazyWeights{compiler: r, group: g}
	var err error
	if weights.key, err = r.memoKey(g); err != nil {
		return nil, err
	}
	if r.memo != nil {
		text, ok := r.memo.Recall(weights.key)
		if ok && json.Unmarshal(text, &weights.known) == nil && len(weights.known.Samples) == len(g.Graphs) {
			return weights, nil
		}
	}
	weights.known = digests{}
	packed, err := weights.ensurePacked(ctx)
	if err != nil {
		return nil, err
	}
	weights.known = packed.digests()
	return weights, weights.saveDigests()
}

// saveDigests keeps the digests in the memo.
func (l *lazyWeights) saveDigests() error {
	if l.compiler.memo == nil {
		return nil
	}
	text, err := json.Marshal(l.known)
	if err != nil {
		return err
	}
	return l.compiler.memo.Keep(l.key, text)
}

// ensurePacked packs the weights, unless they are. Where the memo said something else of them it is errStaleMemo, and
// known is what they are.
func (l *lazyWeights) ensurePacked(ctx context.Context) (*packedGroup, error) {
	l.once.Do(func() {
		l.compiler.packing.Lock()
		defer l.compiler.packing.Unlock()
		if l.err = ctx.Err(); l.err == nil {
			l.loaded, l.err = l.compiler.packGroup(ctx, l.group)
		}
		if l.err != nil || l.known.Weights == "" {
			return
		}
		found := l.loaded.digests()
		if found.Weights != l.known.Weights || !slices.Equal(found.Samples, l.known.Samples) {
			l.known, l.err = found, errStaleMemo
		}
	})
	return l.loaded, l.err
}

// memoKey names everything that decides what a group reads: the model with the calibration, and what of them is packed
// how. What packs them is the program, which the memo stands for.
func (r *groupCompiler) memoKey(group *planir.GraphGroup) (string, error) {
	digest, err := r.content.model.Digest()
	if err != nil {
		return "", err
	}
	list := []any{digest, r.content.plan.Calibration(), group.Layer, r.trialDriver != nil}
	for _, ref := range group.W {
		packing := r.content.packOf(ref)
		list = append(list, packing, r.content.weight(planir.Placement{Pack: packing}), ref)
		if expert, slotted := r.content.slotExpert(ref, group.Layer); slotted {
			list = append(list, expert)
		}
	}
	for _, graph := range group.Graphs {
		name := planir.LayerBlob(graph.Artifact, group.Layer)
		list = append(list, &graph.Graph, r.tried[name] == name)
	}
	hash := sha256.New()
	if err := json.NewEncoder(hash).Encode(list); err != nil {
		return "", err
	}
	return "weights " + hex.EncodeToString(hash.Sum(nil)), nil
}

// aligned returns a size in bytes as memory for weights has it.
func aligned(n int64) int64 { return (n + driver.Align - 1) / driver.Align * driver.Align }

// packGroup packs what a group reads into one region, and makes the samples of the graphs that are tried.
func (r *groupCompiler) packGroup(ctx context.Context, group *planir.GraphGroup) (_ *packedGroup, err error) {
	var size int64
	for _, ref := range group.W {
		_, bytes := specOf(ref, r.content.packOf(ref))
		size += aligned(bytes)
	}
	packed := &packedGroup{}
	if packed.region, err = mem.Alloc(int(max(size, 1)), driver.Align); err != nil {
		return nil, diag.New(diag.ClassRun, "memory for the weights of %q: %w", group.Graphs[0].Name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, packed.close())
		}
	}()
	// All weights of the group lie in one region, so that one release frees them.
	at := int64(0)
	for i, ref := range group.W {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		packing := r.content.packOf(ref)
		spec, count := specOf(ref, packing)
		bytes := packed.region.Bytes()[at : at+count]
		if err := r.content.packRef(bytes, ref, r.content.placementOf(packing, group.Layer)); err != nil {
			return nil, err
		}
		spec.Name = group.Graphs[0].Graph.Weights[i].Name
		weight := driver.Packed{Spec: spec, Bytes: bytes}
		if spec.Experts > 0 {
			weight.Stride = count / int64(spec.Experts)
		}
		packed.weights = append(packed.weights, weight)
		at += aligned(count)
	}
	for _, graph := range group.Graphs {
		var made *sample
		if r.isTried(graph, group.Layer) {
			if made, err = r.oracle.sample(ctx, &graph.Graph, packed.weights); err != nil {
				return nil, fmt.Errorf("sample of graph %q: %w", graph.Name, err)
			}
		}
		packed.samples = append(packed.samples, made)
	}
	return packed, nil
}

// judge compares what was computed of the sample of one of the group's graphs. The errors of a graph within its bound
// are remembered, so that the reference is not computed again. An error of the memo is left in l.err.
func (l *lazyWeights) judge(ctx context.Context, at int, artifact *driver.CompiledArtifact) (*trial, error) {
	graph := &l.group.Graphs[at].Graph
	emulated, portable := driver.SampleDigest(artifact.Emulated), driver.SampleDigest(artifact.Portable)
	key := fmt.Sprintf("trial %d of %s on %s and %s", at, l.key, emulated, portable)
	memo := l.compiler.memo
	if memo != nil {
		var known [2]float64
		if text, ok := memo.Recall(key); ok && json.Unmarshal(text, &known) == nil {
			remembered := &trial{known[0], known[1], boundOf(graph)}
			return remembered, remembered.err()
		}
	}
	packed, err := l.ensurePacked(ctx)
	if err != nil {
		return nil, err
	}
	result, err := packed.samples[at].judge(graph, artifact)
	if err != nil || memo == nil {
		return result, err
	}
	text, err := json.Marshal([2]float64{result.float, result.portable})
	if err == nil {
		err = memo.Keep(key, text)
	}
	if err != nil {
		l.err = err // no fault of the graph
	}
	return result, err
}

// named are weights under the names that a graph has for them.
func named(w driver.Weights, specs []op.WeightSpec) driver.Weights {
	out := slices.Clone(w)
	for i := range out {
		out[i].Spec.Name = specs[i].Name
	}
	return out
}
