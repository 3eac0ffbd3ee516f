package explain

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
)

// question is WHAT of the command line: a program, an operator, one of the words limits and tiers, or, if all are
// empty, the whole plan.
type question struct {
	what, program, node string
	rows                int // of the program, or those for which the operator is asked
}

// parse reads WHAT. A word that the plan does not have is an error of class ClassUsage that names the nearest one.
func parse(plan *planir.Plan, what string) (question, error) {
	if what == "" || what == "limits" || what == "tiers" {
		return question{what: what}, nil
	}
	node, at, asked := strings.Cut(what, "@")
	rows := 1
	if asked {
		var err error
		rows, err = strconv.Atoi(at)
		if err != nil || rows < 1 {
			return question{}, diag.New(diag.ClassUsage, "explain %q: %q is not a number of rows", what, at).
				WithHint("write NODE@ROWS, such as layers.ffn_down@256")
		}
	}

	var programs []string
	for _, program := range plan.Program.Programs {
		// "@256" and "prefill@256" mean the program of that many rows, whatever its name.
		byRows := node == "" || node == program.Phase && at != ""
		if program.Name == what || byRows && program.Rows == rows {
			return question{program: program.Name, rows: program.Rows}, nil
		}
		programs = append(programs, program.Name)
	}

	if len(programs) == 0 {
		return question{}, diag.New(diag.ClassInput, "explain %q: the plan has no programs", what).
			WithHint("make the plan again: hetc solve")
	}
	if node == "" || node == "prefill" || node == "decode" {
		return question{}, diag.New(diag.ClassUsage, "explain %q: the plan has no such program", what).
			WithHint("it has %s", strings.Join(programs, ", "))
	}

	nodes := map[string]bool{}
	for _, decision := range plan.Decisions {
		if decision.Node == node {
			return question{node: node, rows: rows}, nil // solver.Explain checks the number of rows
		}
		nodes[decision.Node] = true
	}

	return question{}, diag.New(diag.ClassUsage, "explain %q: the plan has no such operator or program", what).
		WithHint("%s", nearest(what, node, programs, slices.Sorted(maps.Keys(nodes))))
}

// nearest returns what a user may have meant by a word, or by its part before the @; else it lists what there is.
func nearest(word, node string, programs, nodes []string) string {
	known := slices.Concat(programs, []string{"limits", "tiers"}, nodes)
	return cmp.Or(diag.DidYouMean(word, known), diag.DidYouMean(node, known),
		"WHAT is limits, tiers, one of "+strings.Join(programs, ", ")+", or one of "+strings.Join(nodes, ", ")+
			" with @ROWS")
}
