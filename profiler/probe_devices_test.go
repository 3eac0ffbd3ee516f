package profiler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	compilehost "github.com/hetc/hetc/emit/compile/host"
	compileopencl "github.com/hetc/hetc/emit/compile/opencl"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/socs"
)

// card is a device with memory of its own, which a core of the host imitates.
type card struct {
	driver.Driver
	selector string
}

func newCard(t testing.TB) *card {
	t.Helper()
	devices, err := host.New().Devices(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return &card{drivertest.Queue(host.New(), drivertest.Queueing{OwnMemory: true}), devices[0].Select}
}

func (card) Name() string { return "card" }

func (c *card) Devices(context.Context) ([]driver.Device, error) {
	return []driver.Device{{Select: c.selector, Description: "a card"}}, nil
}

func (*card) Survey(context.Context, driver.Config) (*driver.Survey, error) {
	return &driver.Survey{Kind: "gpu", Name: "Card 1", MaxBytes: 1 << 28, MemoryBytes: 1 << 30,
		Told: map[string]float64{"compute_units": 4}}, nil
}

// cardCompiler compiles for it.
type cardCompiler struct{ driver.Compiler }

func (cardCompiler) Name() string { return "card" }

func (c cardCompiler) Compile(ctx context.Context, g op.Graph, w driver.Weights, t driver.Target) (driver.Artifact,
	error) {
	return c.Compiler.Compile(ctx, g, w, t)
}

// A device is described by what it tells and by what was measured; what copies cost is a price of its own, which the
// times of operators do not hold.
func TestProbeDescribesDevices(t *testing.T) {
	require.Slow(t)
	compilers := map[string]driver.Compiler{"host": compilehost.New(), "card": cardCompiler{compilehost.New()}}
	drv := newCard(t)
	soc, err := Probe(t.Context(), host.New(), ProbeOptions{Fingerprint: host.Fingerprint(), memory: 16 << 20,
		window: 2 * time.Millisecond, Others: []driver.Driver{drv}, Compilers: compilers})
	if err != nil {
		t.Fatal(err)
	}
	gpu := soc.Processor("card:" + drv.selector)
	if gpu == nil {
		t.Fatalf("no card among %v", processorNames(soc))
	}

	if gpu.Kind != "gpu" || len(gpu.Cores) != 0 {
		t.Errorf("%+v, want a GPU without cores", gpu)
	}
	if !gpu.OwnMemory || gpu.GraphBytes != 1<<28 {
		t.Errorf("%+v, want memory of its own, 1<<28 bytes of a graph", gpu)
	}
	if gpu.LaunchUS <= 0 || gpu.BandwidthGBps <= 0 {
		t.Errorf("a launch takes %v us, memory has %v GB/s", gpu.LaunchUS, gpu.BandwidthGBps)
	}
	if len(soc.Memory) != 2 || soc.Memory[1].Bytes != 1<<30 {
		t.Errorf("memory %+v, want that of the machine and that of the card", soc.Memory)
	}
	control := soc.Processors[0].Name
	for _, ends := range [][2]string{{control, gpu.Name}, {gpu.Name, control}} {
		link, ok := soc.Link(ends[0], ends[1])
		if !ok || link.CopyGBps <= 0 {
			t.Errorf("link of %v: %+v, want the price of a copy", ends, link)
		}
		if link.To == gpu.Name && link.HandoverUS <= 0 {
			t.Errorf("link of %v: %+v, want the price of submitting", ends, link)
		}
	}
	checkWaits(t, soc, gpu)
	checkJoints(t, soc, gpu)
	checkSources(t, soc, gpu)
	measureCard(t, soc, gpu, drv, compilers)
}

// checkWaits checks that each way to wait for a card was measured, and that the plan of such a SoC has the one that is
// written in the SoC.
func checkWaits(t *testing.T, soc *socs.SoC, gpu *socs.Processor) {
	t.Helper()
	facts := map[string]float64{}
	for _, fact := range soc.Facts {
		facts[fact.Name] = fact.Value
	}
	prefix := factPrefix(gpu.Name)
	for _, wait := range []string{"sleep", "poll", "event"} {
		small, large := facts[prefix+"meeting_1_us_"+wait], facts[prefix+"meeting_1048576_us_"+wait]
		if small <= 0 || large <= 0 {
			t.Errorf("meetings by %q are not among the facts %v", wait, facts)
		}
	}
	if plan := check.Proc(gpu); plan.Wait != gpu.Wait || gpu.SubmitUS <= 0 {
		t.Errorf("the plan waits by %q, the SoC says %q; submitting takes %v us", plan.Wait, gpu.Wait, gpu.SubmitUS)
	}
}

// checkJoints checks what a card and each group of cores reach together.
func checkJoints(t *testing.T, soc *socs.SoC, gpu *socs.Processor) {
	t.Helper()
	for i := range soc.Processors {
		other := &soc.Processors[i]
		if other == gpu {
			continue
		}
		isPair := func(joint socs.Joint) bool {
			return len(joint.Processors) == 2 && slices.Contains(joint.Processors, gpu.Name) &&
				slices.Contains(joint.Processors, other.Name)
		}
		at := slices.IndexFunc(soc.Joint, isPair)
		if at < 0 || soc.Joint[at].BandwidthGBps <= 0 {
			t.Errorf("no joint bandwidth of %s and %s: %v", other.Name, gpu.Name, soc.Joint)
		}
	}
}

// checkSources checks that the numbers of a card were measured, but for its tile, and that what it tells is there.
func checkSources(t *testing.T, soc *socs.SoC, gpu *socs.Processor) {
	t.Helper()
	found := false
	for _, number := range soc.Numbers() {
		if strings.HasSuffix(number.Path, "compute_units") && number.Value == "4" {
			found = true
		}
		ofCard := strings.Contains(number.Path, gpu.Name) && !strings.Contains(number.Path, ".tile")
		if ofCard && number.Kind != "measured" {
			t.Errorf("%s has source %q", number.Path, number.Kind)
		}
	}
	if !found {
		t.Error("what the card tells is not there")
	}
}

// measureCard profiles a card with operands that stay there, beside cores, without what only cores can.
func measureCard(t *testing.T, soc *socs.SoC, gpu *socs.Processor, drv driver.Driver,
	compilers map[string]driver.Compiler) {
	t.Helper()
	control := soc.Processors[0].Name
	requests := []Request{
		ask(gpu.Name, matmul(1), 0), ask(gpu.Name, &op.Op{Kind: op.QuantRows, M: 2, N: 64}, 0),
		{What: record.Measurement{Kind: record.Bandwidth, Proc: gpu.Name, Bytes: 1 << 20, Unit: "ns"}},
		{What: record.Measurement{Kind: record.Copy, Proc: control, To: gpu.Name, Bytes: 1 << 20, Unit: "ns"}},
	}
	header, err := Header(soc, soc.Fingerprint, "best", "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := record.Create(t.TempDir()+"/r.jsonl", header)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	report, err := Run(t.Context(), soc, requests, writer, Options{Compilers: compilers, Seed: 1,
		Drivers: map[string]driver.Driver{"host": host.New(), "card": drv},
		Rule:    stat.Rule{Min: 5, Max: 6, Within: 0.02}, window: time.Millisecond, memory: 8 << 20})
	if err != nil || report.Measured != len(requests) {
		t.Errorf("measured %d of %d: %+v, %v", report.Measured, len(requests), report.Refused, err)
	}
}

// An implementation of OpenCL for CPUs says which cores it occupies, so that no plan uses them twice.
func TestProbeOpenCL(t *testing.T) {
	require.Slow(t)
	drv := opencl.New()
	devices, err := drv.Devices(t.Context())
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable) {
		require.Skip(t, opencl.Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	soc, err := Probe(t.Context(), host.New(), ProbeOptions{Fingerprint: host.Fingerprint(), memory: 16 << 20,
		window: 2 * time.Millisecond, Others: []driver.Driver{drv},
		Compilers: map[string]driver.Compiler{"host": compilehost.New(), opencl.Name: compileopencl.New()}})
	if err != nil {
		t.Fatal(err)
	}

	described, parts := 0, 0
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		if proc.Driver != opencl.Name {
			continue
		}
		if proc.LaunchUS <= 0 || proc.BandwidthGBps <= 0 {
			t.Errorf("%+v", proc)
		}
		if proc.Kind == socs.KindCPU && len(proc.Cores) == 0 {
			t.Errorf("%+v, want the cores that it occupies", proc)
		}

		if proc.Options["units"] != "" {
			parts++
			checkPart(t, soc, proc)
			continue
		}
		described++
		control := soc.Processors[0].Name
		if proc.Kind == socs.KindCPU && soc.Concurrent(proc.Name, control) == nil {
			t.Errorf("%s runs beside %s on the same core", proc.Name, control)
		}
	}

	if parts == 0 && soc.CPU.Cores > 1 {
		t.Logf("no device can be divided: %v", processorNames(soc))
	}
	if described != len(devices) {
		t.Errorf("%d devices are described of %d", described, len(devices))
	}
}

// checkPart checks a part of a device: it leaves the first core to the host, with which it has prices.
func checkPart(t *testing.T, soc *socs.SoC, proc *socs.Processor) {
	t.Helper()
	control := soc.Processors[0].Name
	link, hasLink := soc.Link(control, proc.Name)
	hasJoint := slices.ContainsFunc(soc.Joint, func(joint socs.Joint) bool {
		isPair := slices.Contains(joint.Processors, proc.Name) && slices.Contains(joint.Processors, control)
		return isPair && joint.BandwidthGBps > 0
	})
	if err := soc.Concurrent(proc.Name, control); err != nil {
		t.Errorf("%s on cores %v beside %s: %v", proc.Name, proc.Cores, control, err)
	}
	if !hasLink || link.HandoverUS <= 0 || !hasJoint {
		t.Errorf("%s beside %s: link %+v, joint %v", proc.Name, control, link, soc.Joint)
	}

	// Hand-overs in both directions are those of a program, whose submissions cost the control thread the same.
	for _, ends := range []string{control + ">" + proc.Name, proc.Name + ">" + control} {
		if source := soc.Sources["links."+ends]; !strings.Contains(source, "work on the other's core") {
			t.Errorf("hand-over %s: source %q, want one of turns with work", ends, source)
		}
	}
	if proc.SubmitUS != link.HandoverUS {
		t.Errorf("%s: submitting takes %v us, and the way there %v", proc.Name, proc.SubmitUS, link.HandoverUS)
	}
}
