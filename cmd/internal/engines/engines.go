// Package engines knows how hetc and other inference engines are measured against each other: the same
// weights, the same cores, a fresh process for every measurement, and engines taking turns.
package engines

import "fmt"

// Task is what one process measures.
type Task struct {
	// tokens of a prompt whose first answer a process that has just begun gives: its whole time counts
	Start  int `json:"start,omitempty"`
	Prompt int `json:"prompt,omitempty"` // tokens of a prefill; 0: decoding is measured
	Depth  int `json:"depth,omitempty"`  // tokens in the cache before decoding
	Gen    int `json:"gen,omitempty"`    // tokens decoded one by one
	Reps   int `json:"reps"`             // repetitions in the process, after one that is not counted
}

// Phase is "start", "prefill" or "decode".
func (t Task) Phase() string {
	switch {
	case t.Start > 0:
		return "start"
	case t.Prompt > 0:
		return "prefill"
	}
	return "decode"
}

// Tokens is the number of tokens that a repetition computes within its time; of a start the first one counts.
func (t Task) Tokens() int {
	if t.Start > 0 {
		return 1
	}
	return t.Prompt + t.Gen
}

// String names the task as tables show it.
func (t Task) String() string {
	switch {
	case t.Start > 0:
		return fmt.Sprintf("start, first token after %d", t.Start)
	case t.Prompt > 0:
		return fmt.Sprintf("prefill %d", t.Prompt)
	}
	return fmt.Sprintf("decode %d after %d", t.Gen, t.Depth)
}

// Engine is one way to execute a model: a program, with the model in one form.
type Engine interface {
	// Name is the engine's, "hetc" for this one.
	Name() string
	// Form is the model's, such as "Q4_0".
	Form() string
	// Files are what a start reads: files, and folders of them.
	Files() []string
	// Command is what measures a task once, on as many threads as given.
	Command(t Task, threads int) (program string, args []string)
	// Parse reads what the command printed on its two outputs. Its errors speak of the output only.
	Parse(t Task, threads int, out, complaints []byte) (Reading, error)
}

// Reading is what an engine says about its execution of a task.
type Reading struct {
	SecondsPerRep []float64 // one for each repetition; none of a start
	// StartSeconds is how long a start took as the engine counts it; 0: its process's whole time counts.
	StartSeconds float64
	WeightBytes  int64 // that decoding a token reads; 0: not known
	Version      string
	Backend      string // the code that computes, such as a kernel set or a library
}
