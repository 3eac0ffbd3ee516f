package profiler

import (
	"context"
	"testing"

	"github.com/hetc/hetc/runtime/driver/host"
)

// A stream reads with cores of this machine, and with no others.
func TestStream(t *testing.T) {
	ctx := context.Background()
	devices, err := host.New().Devices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := OpenStream(ctx, host.New(), devices[0].Cores, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if now, err := stream.GBps(ctx); err != nil || !(now > 0.01 && now < 1e5) {
		t.Errorf("got %g GB/s (%v)", now, err)
	}
	if _, err := OpenStream(ctx, host.New(), []int{1 << 20}, 0); err == nil {
		t.Error("a core that is not there was accepted")
	}
}

// Arithmetic is done by cores of this machine, and by no others.
func TestArithmetic(t *testing.T) {
	ctx := context.Background()
	devices, err := host.New().Devices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	arithmetic, err := NewArithmetic(ctx, host.New(), devices[0].Cores, nil)
	if err != nil {
		t.Fatal(err)
	}
	if arithmetic == nil {
		t.Skip("the peak of the host's kernels is not known on this CPU")
	}
	if now, err := arithmetic.Gops(ctx); err != nil || !(now > 0.01 && now < 1e6) {
		t.Errorf("got %g Gop/s (%v)", now, err)
	}
	if _, err := NewArithmetic(ctx, host.New(), []int{1 << 20}, nil); err == nil {
		t.Error("a core that is not there was accepted")
	}
	unknown := map[string]string{"kernels": "abacus"}
	if _, err := NewArithmetic(ctx, host.New(), devices[0].Cores, unknown); err == nil {
		t.Error("kernels that the options name are not those that multiply")
	}
}
