package build

import (
	"fmt"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
)

// showBuild prints the table and returns why cells failed.
func showBuild(s *cli.Streams, r *matrix.Report) error {
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	var rows [][]string
	failures := &failedCells{}
	simulated, onSimulator, unproved, unsigned := false, false, false, 0
	for _, c := range r.Cells {
		if c.Bundle.Why == matrix.NoKey {
			unsigned++
		}
		row := []string{c.SoC, c.Model, c.Workload, string(c.Plan.State), strings.Replace(string(c.Bundle.State), string(matrix.Omitted), "-", 1), "-", "-", "-"}
		largest := 0
		for _, p := range c.Predictions {
			rows := 0
			if _, err := fmt.Sscanf(p.Program, "prefill@%d", &rows); err == nil && rows > largest {
				largest = rows
				row[5] = fmt.Sprintf("%s @%d", ms(p.PlanNS), rows)
			} else if p.Program == "decode" {
				row[6] = ms(p.PlanNS)
			}
		}
		if c.Bundle.Bytes > 0 {
			row[7] = unit.Bytes(c.Bundle.Bytes).String()
		}
		var notes []string
		switch {
		case c.Evidence == planir.Unproved && c.Simulated:
			unproved, simulated = true, true
			notes = append(notes, "unproved, times simulated")
		case c.Evidence == planir.Unproved:
			unproved = true
			notes = append(notes, "unproved")
		case c.Simulated:
			simulated = true
			onSimulator = onSimulator || c.Bundle.Bytes > 0
			notes = append(notes, "simulated")
		}
		for _, w := range c.Warnings {
			s.Warnf("%s: %s", c.Name(), w)
		}
		if c.Error != nil {
			if failures.add(c) && c.Error.Stack != "" {
				s.Notef("%s: %s", c.Name(), c.Error.Stack)
			}
			notes = append(notes, brief(c.Error.Message))
		}
		for _, a := range []matrix.Artifact{c.Plan, c.Bundle} {
			if a.State == matrix.Failed && a.Why != "" {
				notes = append(notes, a.Why)
			}
		}
		rows = append(rows, append(row, strings.Join(notes, "; ")))
	}
	s.Table([]string{"soc", "model", "workload", "plan", "bundle", ">prefill ms", ">decode ms", ">bundle size", ""}, rows)
	s.Printf("%s: %s\n", r.Output, r.Summary())
	for _, c := range r.Cells {
		for _, change := range c.Changes {
			s.Printf("%s: %s\n", c.Name(), change)
		}
	}
	if simulated {
		s.Printf("times marked simulated are predicted from simulated measurements\n")
	}
	if onSimulator {
		s.Printf("a bundle marked simulated runs on the simulator alone (hetc run); for a device write target: instead of soc:\n")
	}
	if unproved {
		s.Printf("a bundle marked unproved was never executed on its device\n")
	}
	if unsigned > 0 {
		s.Warnf("%d bundles are not written: there is no key to sign them (key: in the file, %s or %s); sign: required makes that an error", unsigned, emit.EnvSigningKey, emit.EnvSigningKeyFile)
	}
	if r.KeyID != "" {
		s.Printf("bundles are signed by key %s\n", r.KeyID)
	}
	if err := s.Result(r); err != nil {
		return err
	}
	return failures.err(len(r.Cells))
}

// brief is the beginning of a reason that is told in full elsewhere.
func brief(message string) string {
	const most = 80
	first, _, more := strings.Cut(message, "\n")
	if r := []rune(first); len(r) > most {
		first, more = string(r[:most]), true
	}
	if more {
		first += " ..."
	}
	return first
}

// failedCells groups cells that failed for the same reason, in the order of the table.
type failedCells struct {
	all   int
	order []*matrix.Failure
	cells map[string][]string // by message
}

// add reports whether the reason is new.
func (f *failedCells) add(c *matrix.Cell) (new bool) {
	if f.cells == nil {
		f.cells = map[string][]string{}
	}
	f.all++
	if new = f.cells[c.Error.Message] == nil; new {
		f.order = append(f.order, c.Error)
	}
	f.cells[c.Error.Message] = append(f.cells[c.Error.Message], c.Name())
	return new
}

// err is nil when nothing failed; its class is that of the first failure.
func (f *failedCells) err(of int) error {
	if f.all == 0 {
		return nil
	}
	var list diag.List
	for _, x := range f.order {
		names := f.cells[x.Message]
		where := names[0]
		if n := len(names) - 1; n > 0 {
			where += fmt.Sprintf(" and %d more", n)
		}
		list = append(list, diag.New(diag.ClassOf(x.Err), "%s: %w", where, x.Err))
	}
	list = append(list, diag.New(list[0].Class, "build: %d of %d failed", f.all, of))
	return list.Err()
}
