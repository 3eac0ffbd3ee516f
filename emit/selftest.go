package emit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/selftest"
)

// SelfTest computes the self-test of the content's plan on reference, a driver whose processors execute every operator
// and scheme in the host's layouts: the results of each distinct graph that another driver executes, with the weights
// of the first layer that it runs in. options configure the processor. The test has no cases where no such graph is.
func (c *Content) SelfTest(ctx context.Context, reference driver.Driver,
	options map[string]string) (*selftest.Test, error) {
	digest, err := planir.Digest(c.plan)
	if err != nil {
		return nil, err
	}
	test := &selftest.Test{Plan: digest}
	targets := selftest.Targets(c.plan)
	if len(targets) == 0 {
		return test, nil
	}
	computer := newOracle(reference)
	computer.options = options
	defer computer.close()
	for i := range targets {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		made, err := c.selfTestCase(ctx, computer, &targets[i])
		if err != nil {
			return nil, fmt.Errorf("self-test of graph %q: %w", targets[i].Graph.Name, err)
		}
		test.Cases = append(test.Cases, *made)
	}
	return test, nil
}

// selfTestSources returns the blobs of the self-test: none where the host or a simulation executes everything.
func (c *Content) selfTestSources(ctx context.Context, reference driver.Driver,
	options map[string]string) ([]bundle.Source, error) {
	if len(selftest.Targets(c.plan)) == 0 {
		return nil, nil
	}
	test, err := c.SelfTest(ctx, reference, options)
	if err != nil {
		return nil, err
	}
	text, err := selftest.Encode(test)
	if err != nil {
		return nil, err
	}
	return []bundle.Source{blob(SelfTestBlob, bundle.RoleSelfTest, "application/vnd.hetc.self-test.v1+json", text)}, nil
}

// selfTestCase computes one case.
func (c *Content) selfTestCase(ctx context.Context, computer *oracle,
	target *selftest.Target) (made *selftest.Case, err error) {
	graph := hostGraph(&target.Graph.Graph)
	weights, regions, err := c.hostWeights(&graph, target)
	defer func() {
		for _, region := range regions {
			err = errors.Join(err, region.Close())
		}
	}()
	if err != nil {
		return nil, err
	}
	amplitudes, err := amplitudesOf(&graph, weights)
	if err != nil {
		return nil, err
	}
	code, err := json.Marshal(&graph)
	if err != nil {
		return nil, err
	}
	call := selftest.NewCall(c.plan, target)
	made = &selftest.Case{Graph: target.Graph.Name, Amplitudes: amplitudes,
		Tolerance: selftest.ToleranceOf(&target.Graph.Graph, c.plan.Proc(target.Graph.Proc).WeightsInArtifacts)}
	err = computer.onThread(ctx, func(proc driver.Processor) error {
		exe, err := proc.Load(ctx, driver.Artifact{Driver: computer.driver.Name(), Code: code}, weights)
		if err != nil {
			return err
		}
		defer exe.Close()
		results, err := call.Execute(proc, exe, amplitudes, call.Reference(), false)
		if err != nil {
			return err
		}
		if made.Results, err = selftest.Sketches(results); err != nil {
			err = diag.New(diag.ClassInput, "self-test of processor %q: graph %q: %w", target.Graph.Proc,
				target.Graph.Name, err).
				WithHint("the model's weights are too large for float32, so that no device can be tested with them: " +
					"plan for this machine's CPU alone, or mend the model")
		}
		return err
	})
	return made, err
}

// hostGraph returns a graph as the host executes it: products in their default form, of weights in hetc's own tiles.
func hostGraph(graph *op.Graph) op.Graph {
	out := *graph
	out.Nodes, out.Weights = slices.Clone(graph.Nodes), slices.Clone(graph.Weights)
	for i := range out.Nodes {
		out.Nodes[i].Op.Form = ""
	}
	for i := range out.Weights {
		if out.Weights[i].Layout != op.RowsLayout {
			out.Weights[i].Layout = pack.N32
		}
	}
	return out
}

// hostWeights packs what a target reads, in the layouts of a graph of hostGraph. The regions are the caller's to close,
// also after an error.
func (c *Content) hostWeights(graph *op.Graph, target *selftest.Target) (weights driver.Weights,
	regions []*mem.Region, err error) {
	for i, ref := range target.Step.W {
		packed := *c.packOf(ref)
		packed.Layout = graph.Weights[i].Layout
		one, err := pack.Bytes(pack.Expert(packed.Spec()))
		if err != nil {
			return nil, regions, err
		}
		packed.Bytes = one * int64(max(1, packed.Experts))
		spec, count := specOf(ref, &packed)
		region, err := mem.Alloc(int(count), driver.Align)
		if err != nil {
			return nil, regions, diag.New(diag.ClassRun, "memory for weight %q: %w", ref.Pack, err)
		}
		regions = append(regions, region)
		if err := c.packRef(region.Bytes(), ref, c.placementOf(&packed, target.Layer)); err != nil {
			return nil, regions, err
		}
		weight := driver.Packed{Spec: spec, Bytes: region.Bytes()}
		if spec.Experts > 0 {
			weight.Stride = one
		}
		if ref.C0 != 0 || ref.C1 != spec.N {
			part, offset, bytes, err := pack.Columns(spec, ref.C0, ref.C1)
			if err != nil {
				return nil, regions, err
			}
			weight.Spec, weight.Bytes = part, weight.Bytes[offset:offset+bytes]
		}
		weight.Spec.Name = graph.Weights[i].Name
		weights = append(weights, weight)
	}
	return weights, regions, nil
}

// amplitudesOf returns the magnitudes that inputs of a graph do not exceed: those of a deviation of 1, and where a
// static scale or a grid takes an input, what fits it. Results beyond their grid saturate on every processor alike.
func amplitudesOf(graph *op.Graph, weights driver.Weights) ([]float32, error) {
	stored := map[string]driver.Packed{}
	for i, spec := range graph.Weights {
		stored[spec.Name] = weights[i]
	}
	out := make([]float32, len(graph.Inputs))
	for i := range out {
		out[i] = float32(math.Sqrt(3))
	}
	for _, node := range graph.Nodes {
		var most float32
		switch {
		case node.Op.Kind == op.QuantRows && node.Op.Static:
			scales, err := unpackedOf(stored[node.W[0]])
			if err != nil {
				return nil, err
			}
			most = fullScale * 127 * slices.Max(scales)
		case node.Op.HasScheme() && node.Op.Scheme.Grid():
			steps, err := unpackedOf(stored[node.W[len(node.W)-1]])
			if err != nil {
				return nil, err
			}
			most = fullScale * op.GridMax * steps[0]
		default:
			continue
		}
		if at := slices.IndexFunc(graph.Inputs, func(v op.Value) bool { return v.Name == node.In[0] }); at >= 0 {
			out[at] = min(out[at], most)
		}
	}
	return out, nil
}

// unpackedOf returns the values that a packed weight stands for.
func unpackedOf(weight driver.Packed) ([]float32, error) {
	values := make([]float32, weight.Spec.K*weight.Spec.N)
	return values, pack.Unpack(values, weight.Spec, weight.Bytes)
}
