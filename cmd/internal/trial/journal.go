package trial

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/runtime/quality"
)

// journal keeps tallies and shares by what was measured, in a file of one JSON document a line. Its first line says for
// which model and text.
type journal struct {
	path   string
	known  map[string]*quality.Tally
	shares map[string]*float64
}

// entry is a line of a journal.
type entry struct {
	For   string         `json:"for,omitempty"`
	What  string         `json:"what,omitempty"`
	Tally *quality.Tally `json:"tally,omitempty"`
	Share *float64       `json:"share,omitempty"`
}

// maxJournal is the size of the largest journal in bytes; a tally of a large model has some kilobytes.
const maxJournal = 256 << 20

// openJournal reads what a run with the same key has measured; a journal of another key is begun anew, and so is one
// whose end is missing, up to there. No path: nothing is kept.
func openJournal(path, key string) (*journal, error) {
	out := &journal{path: path, known: map[string]*quality.Tally{}, shares: map[string]*float64{}}
	if path == "" {
		return out, nil
	}
	data, err := wholefile.Read(path, maxJournal)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for i, line := range strings.SplitAfter(string(data), "\n") {
		var read entry
		if !strings.HasSuffix(line, "\n") || json.Unmarshal([]byte(line), &read) != nil || i == 0 && read.For != key {
			break
		}
		if read.Tally != nil {
			out.known[read.What] = read.Tally
		}
		if read.Share != nil {
			out.shares[read.What] = read.Share
		}
	}
	// Written anew: what was cut off in the middle of a line must not stay. As a whole, since a full disk must not take
	// what was measured.
	var text []byte
	for _, kept := range append([]entry{{For: key}}, out.entries()...) {
		line, err := json.Marshal(kept)
		if err != nil {
			return nil, err
		}
		text = append(append(text, line...), '\n')
	}
	if err := wholefile.Write(path, text); err != nil {
		return nil, err
	}
	return out, nil
}

// entries returns the lines behind the first, in order.
func (j *journal) entries() []entry {
	var out []entry
	for _, what := range slices.Sorted(maps.Keys(j.known)) {
		out = append(out, entry{What: what, Tally: j.known[what]})
	}
	for _, what := range slices.Sorted(maps.Keys(j.shares)) {
		out = append(out, entry{What: what, Share: j.shares[what]})
	}
	return out
}

// find returns what was measured, nil where nothing was.
func (j *journal) find(what string) *quality.Tally {
	if j == nil {
		return nil
	}
	return j.known[what]
}

// share returns a share that was measured, nil where none was.
func (j *journal) share(what string) *float64 {
	if j == nil {
		return nil
	}
	return j.shares[what]
}

// add appends a comparison.
func (j *journal) add(what string, tally *quality.Tally) error {
	return j.append(entry{What: what, Tally: tally})
}

// append appends a line.
func (j *journal) append(measured entry) error {
	if j == nil || j.path == "" {
		return nil
	}
	line, err := json.Marshal(measured)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(j.path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = file.Write(append(line, '\n'))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return diag.New(diag.ClassIO, "write %q: %w", j.path, err)
	}
	return nil
}
