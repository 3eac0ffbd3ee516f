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
func showBuild(ui *cli.Streams, report *matrix.Report) error {
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	var rows [][]string
	failures := &failedCells{}
	simulated, onSimulator, unproved, unsigned := false, false, false, 0
	for _, cell := range report.Cells {
		if cell.Bundle.Why == matrix.NoKey {
			unsigned++
		}
		row := []string{cell.SoC, cell.Model, cell.Workload, string(cell.Plan.State), strings.Replace(string(cell.Bundle.State), string(matrix.Omitted), "-", 1), "-", "-", "-"}
		largest := 0
		for _, prediction := range cell.Predictions {
			rows := 0
			if _, err := fmt.Sscanf(prediction.Program, "prefill@%d", &rows); err == nil && rows > largest {
				largest = rows
				row[5] = fmt.Sprintf("%s @%d", ms(prediction.PlanNS), rows)
			} else if prediction.Program == "decode" {
				row[6] = ms(prediction.PlanNS)
			}
		}
		if cell.Bundle.Bytes > 0 {
			row[7] = unit.Bytes(cell.Bundle.Bytes).String()
		}
		var notes []string
		switch {
		case cell.Evidence == planir.Unproved && cell.Simulated:
			unproved, simulated = true, true
			notes = append(notes, "unproved, times simulated")
		case cell.Evidence == planir.Unproved:
			unproved = true
			notes = append(notes, "unproved")
		case cell.Simulated:
			simulated = true
			onSimulator = onSimulator || cell.Bundle.Bytes > 0
			notes = append(notes, "simulated")
		}
		for _, w := range cell.Warnings {
			ui.Warnf("%s: %s", cell.Name(), w)
		}
		if cell.Error != nil {
			if failures.add(cell) && cell.Error.Stack != "" {
				ui.Notef("%s: %s", cell.Name(), cell.Error.Stack)
			}
			notes = append(notes, brief(cell.Error.Message))
		}
		for _, artifact := range []matrix.Artifact{cell.Plan, cell.Bundle} {
			if artifact.State == matrix.Failed && artifact.Why != "" {
				notes = append(notes, artifact.Why)
			}
		}
		rows = append(rows, append(row, strings.Join(notes, "; ")))
	}
	ui.Table([]string{"soc", "model", "workload", "plan", "bundle", ">prefill ms", ">decode ms", ">bundle size", ""}, rows)
	ui.Printf("%s: %s\n", report.Output, report.Summary())
	for _, cell := range report.Cells {
		for _, change := range cell.Changes {
			ui.Printf("%s: %s\n", cell.Name(), change)
		}
	}
	if simulated {
		ui.Printf("times marked simulated are predicted from simulated measurements\n")
	}
	if onSimulator {
		ui.Printf("a bundle marked simulated runs on the simulator alone (hetc run); for a device write target: instead of soc:\n")
	}
	if unproved {
		ui.Printf("a bundle marked unproved was never executed on its device\n")
	}
	if unsigned > 0 {
		ui.Warnf("%d bundles are not written: there is no key to sign them (key: in the file, %s or %s); sign: required makes that an error", unsigned, emit.EnvSigningKey, emit.EnvSigningKeyFile)
	}
	if report.KeyID != "" {
		ui.Printf("bundles are signed by key %s\n", report.KeyID)
	}
	if err := ui.Result(report); err != nil {
		return err
	}
	return failures.err(len(report.Cells))
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
	for _, failure := range f.order {
		names := f.cells[failure.Message]
		where := names[0]
		if others := len(names) - 1; others > 0 {
			where += fmt.Sprintf(" and %d more", others)
		}
		list = append(list, diag.New(diag.ClassOf(failure.Err), "%s: %w", where, failure.Err))
	}
	list = append(list, diag.New(list[0].Class, "build: %d of %d failed", f.all, of))
	return list.Err()
}
