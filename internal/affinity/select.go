package affinity

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Selection is cores that make one processor, and how they are written: "2", "0-3".
type Selection struct {
	Select string
	Cores  []int
}

// Selections returns every core, and all of them together where there are several.
func Selections() []Selection {
	cores := Cores()
	var out []Selection
	for _, cpu := range cores {
		out = append(out, Selection{strconv.Itoa(cpu), []int{cpu}})
	}
	if count := len(cores); count > 1 {
		out = append(out, Selection{fmt.Sprintf("%d-%d", cores[0], cores[count-1]), cores})
	}
	return out
}

// Select returns the cores, ascending, that a selector names: one, or a range of those that the process may use.
func Select(sel string) ([]int, error) {
	cores := Cores()
	first, last, isRange := strings.Cut(sel, "-")
	if !isRange {
		last = first
	}
	index := func(text string) int { // of a core written canonically
		for i, cpu := range cores {
			if strconv.Itoa(cpu) == text {
				return i
			}
		}
		return -1
	}
	from, to := index(first), index(last)
	if from < 0 || to < from || isRange && to == from {
		var valid []string
		for _, cpu := range cores {
			valid = append(valid, strconv.Itoa(cpu))
		}
		hint := strings.Join(valid, ", ")
		if count := len(valid); count > 1 {
			hint += fmt.Sprintf(", or a range such as %s-%s", valid[0], valid[count-1])
		}
		return nil, diag.New(diag.ClassInput, "no such core: %q", sel).WithHint("valid here: %s", hint)
	}
	return cores[from : to+1], nil
}
