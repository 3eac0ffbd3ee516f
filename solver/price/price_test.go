package price

import (
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

// drawn is a cost model whose times and sources follow from what is asked. It notes every source that it gives.
type drawn struct {
	seed  byte
	given *[]source.Source
}

func (d drawn) estimate(parts ...string) Estimate {
	hash := fnv.New64a()
	hash.Write([]byte{d.seed})
	for _, part := range parts {
		io.WriteString(hash, part+"\n")
	}
	number := hash.Sum64()
	from := source.Measured
	if number>>32%8 == 0 { // few are weak, so that many candidates are not
		from = source.All[number>>40%4]
	}
	*d.given = append(*d.given, from)
	ns := int64(1000 + number%9000)
	return Estimate{NS: ns, Low: ns, High: ns, Source: from}
}

func (d drawn) Together(tasks []Task) ([]Estimate, error) {
	var out []Estimate
	for i := range tasks {
		keys := []string{tasks[i].Key()}
		for j := range tasks {
			if j != i {
				keys = append(keys, tasks[j].Key())
			}
		}
		out = append(out, d.estimate(keys...))
	}
	return out, nil
}

func (d drawn) Phase(Task) (timeline.Phase, error)         { return timeline.Phase{ComputeNS: 1000}, nil }
func (d drawn) Memory() *timeline.Memory                   { return &timeline.Memory{} }
func (d drawn) Handover(from, to string) (Estimate, error) { return d.estimate("flag", from, to), nil }
func (drawn) GatedShare(string, op.Op, op.Op) float64      { return 1 }
func (drawn) LeastGatedShare(string) float64               { return 1 }
func (d drawn) Launch(proc string) (Estimate, error)       { return d.estimate("launch", proc), nil }
func (d drawn) Copy(from, to string, _ int64) (Estimate, error) {
	return d.estimate("copy", from, to), nil
}
func (d drawn) Measured(Task) []int  { return nil }
func (d drawn) Forms(Task) []op.Form { return nil }

// sectionOf is the layer of a small model on the phone, priced by a cost model.
func sectionOf(t *testing.T, costs Costs) *Section {
	t.Helper()
	return sectionOn(t, phone(t), nil, costs)
}

func phone(t *testing.T) *socs.SoC {
	t.Helper()
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	return soc
}

// sectionOn is the layer on any SoC.
func sectionOn(t *testing.T, soc *socs.SoC, only []string, costs Costs) *Section {
	t.Helper()
	model, err := models.Open("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	graph := model.Graph()
	sections, err := lower.Expand(&graph, 64, 256, op.F32, func(string) op.Scheme { return op.A8TQ8C }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := NewMachine(soc, only, costs, op.F32, func(string, ...any) {})
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(sections, func(s lower.Section) bool { return s.Name == "layers" })
	section := NewSection(&sections[at], machine, costs)
	section.Rows, section.Context, section.Buckets, section.Policy.Only = 64, 256, []int{64}, only
	return section
}

// The source of a candidate is the weakest of everything that its price is made of, and no share has a weaker one.
func TestSourceIsTheWeakest(t *testing.T) {
	divided := map[source.Source]int{}
	for seed := range byte(3) {
		var given []source.Source
		section := sectionOf(t, drawn{seed, &given})
		lists, errs := section.Candidates()
		for node, list := range lists {
			if errs[node] != nil {
				t.Fatal(errs[node])
			}
			for i := range list {
				listed := &list[i]
				given = given[:0]
				again, err := section.Price(node, Base(listed.Strategy), listed.Axis, listed.Shares)
				if err != nil {
					t.Fatal(err)
				}
				if want := source.Weakest(given...); again.Source != want || listed.Source != want {
					t.Fatalf("%s as %s: %s, then %s, made of %v", section.Nodes[node].Name, listed.Label(), listed.Source,
						again.Source, given)
				}
				for _, share := range again.Times {
					if source.Weakest(share.Source, again.Source) != again.Source {
						t.Fatalf("%s as %s: %s, and a share is %s", section.Nodes[node].Name, listed.Label(),
							again.Source, share.Source)
					}
				}
				if listed.Axis != planir.AxisNone {
					divided[listed.Source]++
				}
			}
		}
	}
	for _, from := range source.All {
		if divided[from] == 0 {
			t.Errorf("no divided candidate is %s: %v", from, divided)
		}
	}
}

// A hand-over rests on the weakest of the flags that somebody waits for, and on nothing where nobody waits.
func TestSourceOfHandover(t *testing.T) {
	var given []source.Source
	section := sectionOf(t, drawn{1, &given})
	lists, _ := section.Candidates()
	waited := 0
	for node := 1; node < len(lists); node++ {
		values := section.Nodes[node-1].Out
		for i := range lists[node-1] {
			for j := range lists[node] {
				writes := section.Regions(lists[node-1][i].Writes, values)
				reads := section.Regions(lists[node][j].Reads, values)
				_, got, err := section.Handover(writes, reads)
				if err != nil {
					t.Fatal(err)
				}
				want := source.Source("")
				for _, read := range reads {
					for _, write := range writes {
						rows, cols := overlapOf(&read.view, &write.view)
						from, to := section.Procs[write.proc].Name, section.Procs[read.proc].Name
						if from == to || read.value != write.value || rows <= 0 || cols <= 0 {
							continue
						}
						costs := section.Costs.(drawn)
						want = source.Weakest(want, costs.estimate("flag", from, to).Source,
							costs.estimate("copy", from, to).Source)
						waited++
					}
				}
				if got != want {
					t.Fatalf("%s after %s: %q, want %q", lists[node][j].Label(), lists[node-1][i].Label(), got, want)
				}
			}
		}
	}
	if waited == 0 {
		t.Error("nobody waits")
	}
}

// flat takes the same time for everything.
type flat struct {
	drawn
	ns int64
}

func (f flat) Together(tasks []Task) ([]Estimate, error) {
	return slices.Repeat([]Estimate{{NS: f.ns, Low: f.ns, High: f.ns, Source: source.Measured}}, len(tasks)), nil
}

// Like cores get no shares where a processor of all of them could work in their place, which divides the work as it
// goes. Of what is short they do, and where the group may not be used, and unlike processors always do.
func TestLikeCoresAreGroups(t *testing.T) {
	soc := phone(t)
	cpu := *soc.Processor("cpu")
	core := func(name string, peak float64, cores ...int) socs.Processor {
		out := cpu
		out.Name, out.Cores, out.PeakGops = name, cores, map[string]float64{"i8": peak}
		return out
	}
	soc.Processors = []socs.Processor{
		core("a", 100, 0), core("b", 95, 1), core("ab", 190, 0, 1), core("little", 30, 2), *soc.Processor("gpu"),
	}
	soc.Control, soc.Memory, soc.Links, soc.Joint = "a", nil, nil, nil
	for _, c := range []struct {
		ns           int64
		only         []string
		like, unlike bool
	}{
		{shortStep, nil, false, true}, {shortStep - 1, nil, true, true}, {shortStep, []string{"a", "b"}, true, false},
		{shortStep, []string{"a", "b", "ab"}, false, false},
	} {
		var given []source.Source
		section := sectionOn(t, soc, c.only, flat{drawn{1, &given}, c.ns})
		lists, errs := section.Candidates()
		seen := map[string]int{}
		for node, list := range lists {
			if errs[node] != nil {
				t.Fatal(errs[node])
			}
			for i := range list {
				if names := list[i].procs(); len(names) > 1 {
					slices.Sort(names)
					seen[strings.Join(slices.Compact(names), "+")]++
				}
			}
		}
		if seen["a+b"] > 0 != c.like || seen["a+b+gpu"] > 0 != c.like && c.unlike {
			t.Errorf("%d ns, only %v: candidates %v, want shares of a and b = %v", c.ns, c.only, seen, c.like)
		}
		for _, pair := range []string{"ab+gpu", "a+gpu", "a+little", "ab+little"} {
			if seen[pair] > 0 != c.unlike {
				t.Errorf("%d ns, only %v: candidates %v, want some of %s = %v", c.ns, c.only, seen, pair, c.unlike)
			}
		}
	}
}

// A processor that was asked for by name is not left out in silence.
func TestOnlyBesideTheMemory(t *testing.T) {
	soc := phone(t)
	soc.Memory = []socs.Domain{{Name: "dram", Bytes: 8 << 30, Processors: []string{"cpu", "gpu"}}}
	var given []source.Source
	costs := drawn{0, &given}
	left := ""
	note := func(format string, args ...any) { left += fmt.Sprintf(format, args...) }
	if _, err := NewMachine(soc, []string{"gpu"}, costs, op.F32, note); err != nil || !strings.Contains(left, `"npu"`) {
		t.Errorf("without npu: got %v and the notes %q, want a note of npu", err, left)
	}
	_, err := NewMachine(soc, []string{"npu", "cpu"}, costs, op.F32, note)
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "--only npu") {
		t.Errorf("with npu: got %v, want an error about --only npu", err)
	}
}
