// Package papers knows what five papers print, and puts beside it what comes out here: plans that hetc solves for
// catalog SoCs, what its runtime computes with small models, and arithmetic on the printed numbers themselves. What of
// the papers executes is in docs/papers.md. A disagreement is shown, never tuned away.
package papers

import (
	"context"
	"embed"
	"os"
	"path/filepath"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// data are the printed numbers of each paper with their sections, transcribed; "uncertain: true" marks text that is
// ambiguous or garbled in the source.
//
//go:embed data/*.yaml
var data embed.FS

// Class says how an item's value comes about.
type Class string

const (
	// Arithmetic on what the paper prints, and on shapes of catalog models.
	Arithmetic Class = "arithmetic"
	// Solved: a plan that hetc decided for a catalog SoC, and what its prices predict of it.
	Solved Class = "solved"
	// Executed: hetc's runtime, scheduler or calibration computed it, with a small model or on a virtual clock.
	Executed Class = "executed"
	// PrintedOnly: hetc has nothing to put beside it; the note says why.
	PrintedOnly Class = "printed only"
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
	Paper  string // "heteroinfer", "llmnpu", "shadowattn", "agentxpu", "npumoe"
	Name   string // "table3"; with Paper unique
	Title  string // one line
	Source string // "Table 3, sec. 5.2"
	// Run recomputes the rows. models is a folder of trained models, tiny-llama-kjv and tiny-moe-kjv, or empty: then
	// nothing is executed with them.
	Run func(ctx context.Context, models string) ([]Row, error)
}

// CheckModels refuses a folder with none of the models that Item.Run is given a folder of. The empty name is no folder.
func CheckModels(folder string) error {
	if folder == "" {
		return nil
	}
	names := []string{"tiny-llama-kjv", "tiny-moe-kjv"}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return nil
		}
	}
	return diag.New(diag.ClassInput, "--models %q has none of the folders %s", folder, strings.Join(names, " and ")).
		WithHint("give testdata/models of hetc's repository")
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
