package runcmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/op"
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
	manifest := *p.Manifest()
	manifest.Blobs = nil
	var sources []bundle.Source
	for _, blob := range p.Manifest().Blobs {
		data, ok := blobs[blob.Name]
		if !ok {
			data = p.blob(blob.Name)
		}
		sources = append(sources, bundle.Source{Name: blob.Name, Role: blob.Role, Type: blob.Type, Align: blob.Align,
			Bytes: int64(len(data)), Content: bytes.NewReader(data)})
	}
	path := filepath.Join(p.t.TempDir(), "changed.hetb")
	if _, err := bundle.Write(p.t.Context(), path, manifest, sources, p.key.Signer()); err != nil {
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

// change makes another value of a field.
func change(field reflect.Value) {
	switch field.Kind() {
	case reflect.String:
		field.SetString(field.String() + "x")
	case reflect.Int:
		field.SetInt(field.Int() + 1)
	case reflect.Float64:
		field.SetFloat(field.Float() + 0.5)
	case reflect.Bool:
		field.SetBool(!field.Bool())
	case reflect.Slice:
		if field.Len() > 0 {
			field.Set(field.Slice(0, field.Len()-1))
		} else {
			field.Set(reflect.Append(field, reflect.Zero(field.Type().Elem())))
		}
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

	tried := 0
	for _, part := range []struct {
		name string
		of   func(*op.Graph) any
	}{
		{"graph", func(g *op.Graph) any { return g }},
		{"input", func(g *op.Graph) any { return &g.Inputs[0] }},
		{"output", func(g *op.Graph) any { return &g.Outputs[0] }},
		{"weight", func(g *op.Graph) any { return &g.Weights[0] }},
		{"node", func(g *op.Graph) any { return &g.Nodes[0] }},
		{"operator", func(g *op.Graph) any { return &g.Nodes[0].Op }},
	} {
		for i := range reflect.TypeOf(part.of(p.graph(product))).Elem().NumField() {
			artifact := product
			if part.name == "operator" { // of another kind each
				artifact = all[i%len(all)]
			}
			graph := p.graph(artifact)
			value := reflect.ValueOf(part.of(graph)).Elem()
			field := value.Field(i)
			if field.Kind() == reflect.Struct { // the operator of a node, see below
				continue
			}
			change(field)
			code, err := json.Marshal(graph)
			if err != nil {
				t.Fatal(err)
			}
			p.refused(fmt.Sprintf("%s.%s of %s", part.name, value.Type().Field(i).Name, artifact), artifact, code)
			tried++
		}
	}
	if tried < 60 {
		t.Errorf("tried %d fields", tried)
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
