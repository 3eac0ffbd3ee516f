package explain

import (
	"fmt"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/solver/explain"
)

// ms writes nanoseconds in milliseconds, with about three digits.
func ms(ns int64) string {
	switch {
	case ns >= 100e6:
		return fmt.Sprintf("%.0f ms", float64(ns)/1e6)
	case ns >= 10e6:
		return fmt.Sprintf("%.1f ms", float64(ns)/1e6)
	}
	return fmt.Sprintf("%.2f ms", float64(ns)/1e6)
}

// shareText writes a part in percent of all.
func shareText(part, all int64) string {
	if all <= 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(all))
}

// against compares a program with its best single processor.
func against(st *explain.ProgramTimes) string {
	gain := st.Gain()
	switch {
	case st.Best == nil:
		return "; no single processor could execute all of it"
	case gain < 1.005:
		return fmt.Sprintf(", as fast as the best single processor, %s: dividing the work would not pay", st.Best.Proc)
	default:
		return fmt.Sprintf(", %.2f times as fast as the best single processor (%s: %s)", gain, st.Best.Proc,
			ms(st.Best.NS))
	}
}

// spoken returns the purposes of programs in words.
func spoken(programs []string) []string {
	var out, sizes []string
	for _, name := range programs {
		// Programs are called decode, decode@ROWS for batches, and prefill@ROWS.
		switch phase, rows, _ := strings.Cut(name, "@"); {
		case name == "decode":
			out = append(out, "answers")
		case phase == "decode":
			out = append(out, rows+" answers at a time")
		default:
			sizes = append(sizes, rows)
		}
	}

	if sizes != nil {
		out = append(out, "prompts of up to "+cli.Enumerate(sizes)+" tokens")
	}
	return out
}

// change writes a ratio of times.
func change(ratio float64) string {
	// Exactly 1 is the plan itself, which has no change to show.
	if ratio == 1 {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", 100*(ratio-1))
}

// besideProbe compares the rate at which weights are read with the probed one, both in GB/s. It gives possible reasons
// for a rate above the probed one.
func besideProbe(rate, probed float64, procs string) string {
	if rate <= roofline.MostOfProbe*probed {
		return fmt.Sprintf("%s can read %.1f", procs, probed)
	}
	return fmt.Sprintf("more than the %.1f that %s read from memory when probed: part of the weights stays in "+
		"caches, or the machine was busy then", probed, procs)
}
