package main

import (
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
)

// showTarget tells that a plan is for the device of its SoC.
func showTarget(s *cli.Streams, p *planir.Plan) {
	if !p.SoC.Target {
		return
	}
	var procs []string
	for i := range p.Procs {
		procs = append(procs, p.Procs[i].Name)
	}
	times := ""
	if p.SoC.Simulated {
		times = "; its times are simulated"
	}
	s.Printf("target %s: only processors with target data, with what they execute there (%s)%s\n", p.SoC.Name, strings.Join(procs, ", "), times)
}
