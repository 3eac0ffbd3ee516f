package planview

import (
	"fmt"
	"strconv"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
)

// showDrafts prints whether tokens are guessed, how many at a time, and what every length of a draft would take.
func showDrafts(ui *cli.Streams, plan *planir.Plan) {
	drafts := plan.Drafts
	if drafts == nil {
		return
	}
	ms := func(ns float64) string { return fmt.Sprintf("%.3f", ns/1e6) }
	plain := float64(drafts.PlainNS)
	if drafts.Tokens == 0 {
		ui.Printf("\nno tokens are guessed: with an acceptance of %.2f plain decoding takes less than any draft:\n",
			drafts.Acceptance)
	} else {
		_, ns := drafts.Best(drafts.Acceptance, drafts.Tokens)
		ui.Printf("\ndrafts of %d tokens where a request decodes alone: %s ms a token with an acceptance of %.2f, plain %s:\n",
			drafts.Tokens, ms(ns), drafts.Acceptance, ms(plain))
	}
	rows := [][]string{{"0", ms(plain), "1.00", ms(plain), "1.00"}}
	expected, right := 1.0, 1.0
	for i, ns := range drafts.VerifyNS {
		right *= drafts.Acceptance
		expected += right
		each := float64(ns) / expected
		rows = append(rows, []string{strconv.Itoa(i + 1), ms(float64(ns)), fmt.Sprintf("%.2f", expected), ms(each),
			fmt.Sprintf("%.2f", plain/each)})
	}
	ui.Table([]string{">draft", ">call ms", ">tokens a call", ">ms a token", ">plain / draft"}, rows)
}
