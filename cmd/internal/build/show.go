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

// marks say what the notes of cells mean, where there are any.
type marks struct{ simulated, onSimulator, unproved bool }

// showBuild prints the table and returns why cells failed.
func showBuild(ui *cli.Streams, report *matrix.Report) error {
	var rows [][]string
	var found marks
	failures := &failedCells{}
	unsigned := 0
	for _, cell := range report.Cells {
		if cell.Bundle.Why == matrix.NoKey {
			unsigned++
		}
		for _, warning := range cell.Warnings {
			ui.Warnf("%s: %s", cell.Name(), warning)
		}
		if cell.Error != nil && failures.add(cell) && cell.Error.Stack != "" {
			ui.Notef("%s: %s", cell.Name(), cell.Error.Stack)
		}
		rows = append(rows, append(figures(cell), strings.Join(found.notes(cell), "; ")))
	}
	ui.Table([]string{"soc", "model", "workload", "plan", "bundle", ">prefill ms", ">decode ms", ">bundle size", ""},
		rows)
	ui.Printf("%s: %s\n", report.Output, report.Summary())
	for _, cell := range report.Cells {
		for _, change := range cell.Changes {
			ui.Printf("%s: %s\n", cell.Name(), change)
		}
	}
	found.explain(ui)
	if unsigned > 0 {
		are := "are"
		if unsigned == 1 {
			are = "is"
		}
		ui.Warnf("%s %s not written: there is no key that signs (key: in the file, %s or %s); sign: required makes that "+
			"an error",
			cli.Count(unsigned, "bundle"), are, emit.EnvSigningKey, emit.EnvSigningKeyFile)
	}
	if report.KeyID != "" {
		ui.Printf("bundles are signed by key %s\n", report.KeyID)
	}
	if err := ui.Result(report); err != nil {
		return err
	}
	return failures.err(len(report.Cells))
}

// figures returns the cell's columns but the last: names, states, predicted times and the bundle's size.
func figures(cell *matrix.Cell) []string {
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	prefill, decode, size, largest := "-", "-", "-", 0
	for _, prediction := range cell.Predictions {
		rows := 0
		if _, err := fmt.Sscanf(prediction.Program, "prefill@%d", &rows); err == nil && rows > largest {
			largest = rows
			prefill = fmt.Sprintf("%s @%d", ms(prediction.PlanNS), rows)
		} else if prediction.Program == "decode" {
			decode = ms(prediction.PlanNS)
		}
	}
	if cell.Bundle.Bytes > 0 {
		size = unit.Bytes(cell.Bundle.Bytes).String()
	}
	bundle := strings.Replace(string(cell.Bundle.State), string(matrix.Omitted), "-", 1)
	return []string{cell.SoC, cell.Model, cell.Workload, string(cell.Plan.State), bundle, prefill, decode, size}
}

// notes returns what a cell's last column says: whose times these are, and why something failed.
func (m *marks) notes(cell *matrix.Cell) (notes []string) {
	switch {
	case cell.Evidence == planir.Unproved && cell.Simulated:
		m.unproved, m.simulated = true, true
		notes = append(notes, "unproved, times simulated")
	case cell.Evidence == planir.Unproved:
		m.unproved = true
		notes = append(notes, "unproved")
	case cell.Simulated:
		m.simulated = true
		m.onSimulator = m.onSimulator || cell.Bundle.Bytes > 0
		notes = append(notes, "simulated")
	}
	if cell.Error != nil {
		notes = append(notes, brief(cell.Error.Message))
	}
	for _, artifact := range []matrix.Artifact{cell.Plan, cell.Bundle} {
		if artifact.State == matrix.Failed && artifact.Why != "" {
			notes = append(notes, artifact.Why)
		}
	}
	return notes
}

// explain says what the notes mean.
func (m *marks) explain(ui *cli.Streams) {
	if m.simulated {
		ui.Printf("times marked simulated are predicted from simulated measurements\n")
	}
	if m.onSimulator {
		ui.Printf("a bundle marked simulated runs on the simulator alone (hetc run); for a device write target: " +
			"instead of soc:\n")
	}
	if m.unproved {
		ui.Printf("a bundle marked unproved was never executed on its device\n")
	}
}

// brief returns the beginning of a reason that is told in full elsewhere.
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
