package doctor

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/cmd/internal/verdicts"
)

// selfTests lists which devices have passed the self-test of which bundle; dir is the cache, "" the default one. Every
// build of this program has a verdict of its own, which mostly says the same: it is told once.
func selfTests(dir string) []Finding {
	const check = "self-test"
	known, err := verdicts.List(dir)
	if err != nil {
		return []Finding{failed(check, err).
			but(Note, "until it can be read, bundles are tested every time they are run")}
	}
	if len(known) == 0 {
		return []Finding{ok(check, "none was passed yet: hetrun tests every device but the host before its first use")}
	}
	var out []Finding
	for i := range known {
		finding := ok(check, "%s", fmt.Sprintf("%s; bundle %s %.12s", &known[i], known[i].Product, known[i].Bundle))
		if !slices.Contains(out, finding) {
			out = append(out, finding)
		}
	}
	return out
}
