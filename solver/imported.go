package solver

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// checkImported returns an error if the model needs operators for which a SoC with imported times has none. It names
// them all, because nothing can measure them there.
func (in *Input) checkImported() error {
	if !in.SoC.Imported() {
		return nil
	}

	var lacking []string
	graph := in.Model.Graph()
	for i := range graph.Sections {
		for _, node := range graph.Sections[i].Nodes {
			for _, operator := range node.Ops {
				kind := string(operator.Kind)
				if !in.executed(operator.Kind) && !slices.Contains(lacking, kind) {
					lacking = append(lacking, kind)
				}
			}
		}
	}

	if len(lacking) == 0 {
		return nil
	}
	slices.Sort(lacking)
	return diag.New(diag.ClassInput,
		"solve: the imported times of SoC %q do not suffice for model %q: nothing is known of %s",
		in.SoC.Name, in.Model.Name, strings.Join(lacking, ", ")).
		WithCode("solve.imported").
		WithHint("import rows for them too, or import into a SoC that has other processors: hetc import --soc SOC, " +
			"then hetc profile --soc SOC --resume adds the rest")
}

// executed reports whether a processor executes operators of a kind.
func (in *Input) executed(kind op.Kind) bool {
	for i := range in.SoC.Processors {
		if in.SoC.Processors[i].Executes(kind) {
			return true
		}
	}
	return false
}
