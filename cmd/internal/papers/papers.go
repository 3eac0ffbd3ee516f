// Package papers knows what five papers print, and recomputes of it what can be recomputed: each item gives the
// paper's value beside ours. What of the papers executes is in docs/papers.md. A disagreement is shown, never tuned
// away.
package papers

import (
	"context"
	"embed"
)

// data are the printed numbers of each paper with their sections, transcribed; "uncertain: true" marks text that is
// ambiguous or garbled in the source.
//
//go:embed data/*.yaml
var data embed.FS

// Class says how an item's value comes about.
type Class string

const (
	Exact Class = "exact" // a formula and its inputs are printed
	// through a catalog SoC or a model fitted to some printed points and compared on others
	Modelled        Class = "modelled"
	Measured        Class = "measured here"    // the same experiment on this machine's processors
	NotReproducible Class = "not reproducible" // the note says what is missing
)

// Row is one recomputed value. Paper and Ours are numbers (float64) with the unit in ID or Note, or text; Paper is nil
// where the paper prints nothing, Ours where nothing can be recomputed.
type Row struct {
	ID    string `json:"id"` // "heteroinfer/table3/ffn_down-256/ratio"
	Paper any    `json:"paper"`
	Ours  any    `json:"ours"`
	Class Class  `json:"class"`
	Note  string `json:"note"` // section, assumptions, why they differ
}

// Item is one thing a paper says about deciding.
type Item struct {
	Paper  string   // "heteroinfer", "llmnpu", "shadowattn", "agentxpu", "npumoe"
	Name   string   // "table3"; with Paper unique
	Title  string   // one line
	Source string   // "Table 3, sec. 5.2"
	Checks []string // the derived_checks of the paper's data that the rows answer
	Run    func(ctx context.Context) ([]Row, error)
}

// Papers are the names of the papers, in the order they are shown.
var Papers = []string{"heteroinfer", "llmnpu", "shadowattn", "agentxpu", "npumoe"}

// Items lists every item, by paper.
func Items() []Item {
	var out []Item
	for i, items := range [][]Item{heteroinfer, llmnpu, shadowattn, agentxpu, npumoe} {
		out = append(append(out, items...), missing(Papers[i]))
	}
	return out
}
