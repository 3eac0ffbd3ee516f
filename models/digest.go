package models

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
)

// digestChunk is how many bytes of a tensor are hashed as one leaf; part of the digest's definition.
const digestChunk = 4 << 20

// description is what the digest covers besides the tensors' bytes.
type description struct {
	// which definition of the digest this is
	Schema       string `json:"schema"`
	Architecture string `json:"architecture"`
	MaxContext   int    `json:"max_context"`
	// tokens that begin and end texts
	BOS     int          `json:"bos"`
	EOS     []int        `json:"eos"`
	Graph   digestGraph  `json:"graph"`
	Tensors []tensorSeal `json:"tensors"` // what the graph uses, sorted by name; null without weights
}

// digestGraph is the graph under the names of the digest's definition, which are not those of a plan.
type digestGraph struct {
	Sections []Section
	Weights  []digestWeight
}

// digestWeight is what a model says of a weight.
type digestWeight struct {
	Name string
	// stored tensors, see op.Weight for this and the rest
	From       []string
	Interleave []int
	K, N       int
	Transposed bool
	Experts    int
	Plus       float32
	Const      []float32
}

// digested returns the graph as the digest covers it.
func (g *Graph) digested() digestGraph {
	out := digestGraph{Sections: g.Sections}
	for _, w := range g.Weights {
		out.Weights = append(out.Weights,
			digestWeight{w.Name, w.From, w.Interleave, w.K, w.N, w.Transposed, w.Experts, w.Plus, w.Const})
	}
	return out
}

// tensorSeal covers one tensor's bytes: the SHA-256 of the SHA-256s of its chunks.
type tensorSeal struct {
	Name   string  `json:"name"`
	Type   op.Type `json:"type"`
	Form   string  `json:"form,omitempty"` // how the bytes become values
	Shape  []int   `json:"shape"`
	SHA256 string  `json:"sha256"`
}

// Digest returns the identity of the model: the hex SHA-256 of a canonical description of everything that
// influences what it computes, including every byte of the tensors the graph uses. It does not depend
// on the model's name, on how tensors are spread over files, or on stored tensors that are ignored.
// Without weights it covers the description only. It reads all weights once (about 1 GB/s and core).
func (m *Model) Digest() (string, error) {
	m.digestOnce.Do(func() { m.digest, m.digestErr = m.computeDigest() })
	return m.digest, m.digestErr
}

// computeDigest hashes the description as JSON. Maps do not occur in it, so that its text is
// canonical.
func (m *Model) computeDigest() (string, error) {
	covered := description{Schema: "hetc.model-digest/2", Architecture: m.Architecture, MaxContext: m.MaxContext,
		BOS: m.BOS, EOS: m.EOS, Graph: m.graph.digested()}
	if m.Dir != "" { // a closed model must not pass for a catalog entry
		if !m.HasWeights() {
			return "", m.noWeights("digest")
		}
		var err error
		if covered.Tensors, err = m.sealTensors(); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(covered)
	if err != nil {
		return "", fmt.Errorf("digest of model %q: %w", m.Name, err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// sealTensors hashes the tensors the graph uses, in the order of their names. It hashes chunks on all
// cores and then, for each tensor, the list of its chunks' sums (a tree of depth two), so that the
// result does not depend on the number of cores.
func (m *Model) sealTensors() ([]tensorSeal, error) {
	type leaf struct {
		data []byte
		sum  *[sha256.Size]byte
	}
	var leaves []leaf
	seals := make([]tensorSeal, 0, len(m.tensors))
	sums := make([][][sha256.Size]byte, 0, len(m.tensors))
	for _, name := range slices.Sorted(maps.Keys(m.tensors)) {
		tensor := m.tensors[name]
		seals = append(seals, tensorSeal{Name: name, Type: tensor.Type(), Form: tensor.Form(), Shape: tensor.Shape()})
		data := tensor.Data()
		own := make([][sha256.Size]byte, (len(data)+digestChunk-1)/digestChunk)
		for i := range own {
			leaves = append(leaves, leaf{data[i*digestChunk : min((i+1)*digestChunk, len(data))], &own[i]})
		}
		sums = append(sums, own)
	}
	err := parallel(len(leaves), func(i int) error {
		return mem.CatchFault(func() { *leaves[i].sum = sha256.Sum256(leaves[i].data) })
	})
	if err != nil {
		return nil, diag.New(diag.ClassIO, "digest of model %q: %w", m.Name, err)
	}
	for i := range seals {
		hash := sha256.New()
		for _, sum := range sums[i] {
			hash.Write(sum[:])
		}
		seals[i].SHA256 = hex.EncodeToString(hash.Sum(nil))
	}
	return seals, nil
}

// parallel calls f(0..n-1) on all cores and returns the error of the lowest index that failed.
func parallel(count int, work func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed, first := count, error(nil)
	for range min(count, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				if err := work(i); err != nil {
					mu.Lock()
					if i < failed {
						failed, first = i, err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}
