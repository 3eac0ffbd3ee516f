package profiler

import (
	"context"
	"testing"

	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// A stream reads with the cores of the largest processor, in the instructions of its driver, and knows what was probed.
// Devices that are no cores have none.
func TestStream(t *testing.T) {
	ctx := context.Background()
	devices, err := host.New().Devices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	soc := &socs.SoC{}
	for _, device := range devices {
		soc.Processors = append(soc.Processors, socs.Processor{Name: "host:" + device.Select, Driver: host.Name,
			Cores: device.Cores, BandwidthGBps: float64(10 * len(device.Cores))})
	}
	stream, err := OpenStream(ctx, soc, []driver.Driver{host.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	most := soc.Processor(stream.Processor)
	for i := range soc.Processors {
		if len(soc.Processors[i].Cores) > len(most.Cores) {
			t.Errorf("%s reads, %s has more cores", most.Name, soc.Processors[i].Name)
		}
	}
	if stream.ProbedGBps != most.BandwidthGBps {
		t.Errorf("probed %g GB/s, want %g", stream.ProbedGBps, most.BandwidthGBps)
	}
	if now, err := stream.GBps(ctx); err != nil || !(now > 0.01 && now < 1e5) {
		t.Errorf("got %g GB/s (%v)", now, err)
	}
	device := &socs.SoC{Processors: []socs.Processor{{Name: "gpu", Driver: "opencl"}}}
	if none, err := OpenStream(ctx, device, nil); none != nil || err != nil {
		t.Errorf("a device without cores: got %v (%v), want nothing", none, err)
	}
}
