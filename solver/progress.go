package solver

// Progress says how far a solve has come.
type Progress struct {
	Phase string // "price candidates", "choose schemes", "limits"
	Done  int    // of what the phase counts
	All   int    // 0: how many there are is not known
	What  string // that the phase looks at, "" for nothing in particular
	// Best is the objective of the best plan so far, and Bound what none falls below, in Unit: ms of the expected time,
	// mJ where energy is minimised. 0: not known yet.
	Best, Bound float64
	Unit        string
}

// Tell passes progress on, if the caller wants to hear it.
func (in *Input) Tell(progress Progress) {
	if in.Progress != nil {
		in.Progress(progress)
	}
}
