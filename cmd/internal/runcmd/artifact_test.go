package runcmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/bundle/bundletest"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/op/optest"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
)

// publisher is a bundle and the key that has signed it.
type publisher struct {
	*bundle.Bundle
	t       *testing.T
	key     *emit.PrivateKey
	trust   string
	plan    *planir.Plan
	drivers []driver.Driver
	tokens  string // of its prompt
}

// newPublisher emits a small model, whose artifacts are those of the host.
func newPublisher(t *testing.T) *publisher {
	t.Helper()
	gpu := coreProc(t)
	gpu.Name = "gpu"
	path, trust := bundleOfModel(t, "arch/llama-plain", gpu, func(*emit.Options) {})
	return publish(t, path, trust, "1,5", host.New())
}

// publish opens a bundle of that key, which lies beside the .pub.
func publish(t *testing.T, path, trust, tokens string, drivers ...driver.Driver) *publisher {
	t.Helper()
	key, err := emit.LoadSigningKey(strings.TrimSuffix(trust, ".pub") + ".key")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := bundle.LoadTrust(trust)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := bundle.Open(path, bundle.Options{Trust: keys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	made := &publisher{Bundle: opened, t: t, key: key, trust: trust, drivers: drivers, tokens: tokens}
	made.plan = made.decoded()
	return made
}

// decoded is the plan of the bundle.
func (p *publisher) decoded() *planir.Plan {
	p.t.Helper()
	plan, err := planir.Decode(p.blob(p.Manifest().Entrypoint))
	if err != nil {
		p.t.Fatal(err)
	}
	return plan
}

// blob is the content of a blob.
func (p *publisher) blob(name string) []byte {
	p.t.Helper()
	data, err := p.Bytes(name)
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

// graph is the graph that an artifact holds.
func (p *publisher) graph(artifact string) *op.Graph {
	p.t.Helper()
	graph, err := driver.ParseGraph(p.blob(artifact))
	if err != nil {
		p.t.Fatal(err)
	}
	return &graph
}

// sign writes the bundle again with other blobs, and signs it.
func (p *publisher) sign(blobs map[string][]byte) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "changed.hetb")
	changes := bundletest.Changes{Contents: blobs}
	if err := bundletest.Resign(p.t.Context(), path, p.Bundle, changes, p.key.Signer()); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// run executes a bundle as hetrun does and returns what it generated.
func (p *publisher) run(path string) (generated string, err error) {
	p.t.Helper()
	var out bytes.Buffer
	ui := &cli.Streams{Tool: "hetrun", Out: &out, Err: io.Discard}
	cmd := New(ui, "hetrun", false, func(*planir.Plan) ([]driver.Driver, error) { return p.drivers, nil })
	cmd.SetArgs([]string{path, "--trust", p.trust, "--tokens", p.tokens, "--max-tokens", "2"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(p.t.Context())
	return out.String(), err
}

// refused runs the bundle with a changed artifact, which must be refused before anything is generated.
func (p *publisher) refused(what, artifact string, code []byte) {
	p.t.Helper()
	path := p.sign(map[string][]byte{artifact: code})
	generated, err := p.run(path)
	if class := diag.ClassOf(err); class != diag.ClassVerify || generated != "" {
		p.t.Errorf("%s: class %v, generated %q, %v; want class %v and nothing generated", what, class, generated, err,
			diag.ClassVerify)
		return
	}
	if !strings.Contains(err.Error(), "another graph than the plan") || !strings.Contains(err.Error(), "load graph ") {
		p.t.Errorf("%s: %v", what, err)
	}
	if err := os.Remove(path); err != nil {
		p.t.Fatal(err)
	}
}

// A publisher may sign whatever he likes, but an artifact of the host that holds another graph than his plan is
// refused, whichever field of it differs.
func TestArtifactOfAnotherGraph(t *testing.T) {
	require.Slow(t)
	p := newPublisher(t)
	if generated, err := p.run(p.sign(nil)); err != nil || generated == "" {
		t.Fatalf("signed again without a change: generated %q, %v", generated, err)
	}
	// product is a graph with inputs, outputs, weights and nodes.
	var product string
	var all []string
	for i := range p.plan.Program.Graphs {
		graph := &p.plan.Program.Graphs[i]
		all = append(all, graph.Artifact)
		if graph.Graph.Nodes[0].Op.Kind == op.MatMul {
			product = graph.Artifact
		}
	}
	if product == "" || len(all) < 3 {
		t.Fatalf("the plan has graphs %q, none of them a product", all)
	}

	fields := optest.Fields(p.graph(product))
	if len(fields) < 60 {
		t.Errorf("a graph has %d fields", len(fields))
	}
	for i, field := range fields {
		artifact := product
		if field.Part == "operator" { // of another kind each
			artifact = all[i%len(all)]
		}
		graph := p.graph(artifact)
		field.Change(graph)
		code, err := json.Marshal(graph)
		if err != nil {
			t.Fatal(err)
		}
		p.refused(fmt.Sprintf("%s.%s of %s", field.Part, field.Name, artifact), artifact, code)
	}

	good := p.blob(product)
	for i, other := range all {
		if !bytes.Equal(p.blob(other), good) {
			p.refused(fmt.Sprintf("artifact %d in the place of a product's", i), product, p.blob(other))
		}
	}
	p.refused("no bytes", product, nil)
	p.refused("no graph", product, []byte("{}"))
	p.refused("half a graph", product, good[:len(good)/2])
	p.refused("a graph and a space", product, append(bytes.Clone(good), ' '))
	p.refused("a field that is not known", product, append([]byte(`{"x":1,`), good[1:]...))
}
