package drivertest_test

import (
	"fmt"
	"testing"
	"time"

	compile "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
)

// The host's processors behind a queue keep the whole contract, on its memory and on memory of their own.
func TestQueue(t *testing.T) {
	devices, err := host.New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("own memory %v", own), func(t *testing.T) {
			how := drivertest.Queueing{OwnMemory: own, Delay: func(ticket driver.Ticket) time.Duration {
				return time.Duration(ticket%7/6) * 50 * time.Microsecond
			}}
			drivertest.Run(t, drivertest.Factory{Driver: drivertest.Queue(host.New(), how), Compiler: compile.New(),
				Config: driver.Config{Select: devices[0].Select}, Sampled: true})
		})
	}
}
