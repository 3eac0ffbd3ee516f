package explain

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/explain"
)

// summary describes the plan in sentences.
func (x *answer) summary(times []explain.ProgramTimes) []string {
	if len(times) == 0 {
		return []string{"the plan has no programs"}
	}
	var out []string
	if x.p.SoC.Target {
		out = append(out, "It is planned for the device: only processors with target data take part, with the "+
			"operators and schemes they execute there.")
	}
	out = append(out, x.where(times)...)

	decode, prefill := timed(times)
	if decode != nil {
		out = append(out, fmt.Sprintf("An answer takes %s a token (%.0f tokens/s)%s.",
			ms(decode.PlanNS), 1e9/float64(decode.PlanNS), against(decode)))
	}
	var large *explain.ProgramTimes
	if len(prefill) > 0 {
		// The largest bucket stands for all prompts, because long ones are cut into pieces of its size.
		large = slices.MaxFunc(prefill, func(a, b *explain.ProgramTimes) int { return a.Rows - b.Rows })
		out = append(out, fmt.Sprintf("A prompt of %d tokens takes %s (%.0f tokens/s)%s.",
			large.Rows, ms(large.PlanNS), float64(large.Rows)*1e9/float64(large.PlanNS), against(large)))
		out = append(out, gains(large, prefill)...)
	}

	if decode != nil {
		out = append(out, "What bounds an answer: "+x.bounds(decode)+".")
	}
	if large != nil {
		out = append(out, "What bounds a prompt: "+x.bounds(large)+".")
	}

	out = append(out, x.forms()...)
	out = append(out, waits(x.p)...)
	out = append(out, planview.CompiledWords(x.p.Compiled)...)
	if proof := solver.ProofOf(x.p.Solver).String(); proof != "" {
		out = append(out, proof)
	}
	if grounds := solver.GroundsOf(x.p).String(); grounds != "" {
		out = append(out, grounds)
	}
	return append(out, provenance(&x.p.SoC))
}

// timed returns the programs with a predicted time: that of one token, nil where there is none, and those of prompts.
func timed(times []explain.ProgramTimes) (decode *explain.ProgramTimes, prefill []*explain.ProgramTimes) {
	for i := range times {
		program := &times[i]
		switch {
		case program.PlanNS <= 0:
		case program.Phase == "decode" && program.Rows == 1:
			decode = program
		case program.Phase == "prefill":
			prefill = append(prefill, program)
		}
	}
	return decode, prefill
}

// gains says how the gain over the best single processor depends on the size of prompts, where there are several sizes.
// Among sizes of equal gain it names the largest.
func gains(large *explain.ProgramTimes, prefill []*explain.ProgramTimes) []string {
	least, most := large, large
	for _, program := range prefill {
		if program.Gain() < least.Gain() {
			least = program
		}
		if program.Gain() > most.Gain() {
			most = program
		}
	}

	// A gain of 0 means that no single processor executes the program.
	if least.Gain() <= 0 || len(prefill) < 2 {
		return nil
	}
	return []string{fmt.Sprintf("Over prompts of all sizes it is %.2f (%s) to %.2f times (%s) as fast as the best "+
		"single processor for that size.",
		least.Gain(), least.Program, most.Gain(), most.Program)}
}

// provenance says whether the times of a plan were simulated, imported, or measured on this machine.
func provenance(soc *planir.SoCRef) string {
	switch {
	case soc.Simulated && soc.Imported:
		return "Times are simulated, or were measured elsewhere (imported): the SoC is a description, not a machine " +
			"that was measured."
	case soc.Simulated:
		return "All times are simulated: the SoC is a description, not a machine that was measured."
	case soc.Imported:
		return "Times were measured elsewhere (imported): hetc did not measure them, and cannot."
	}
	return "All times are predictions from measurements of this machine; hetc bench processors measures the plan " +
		"itself."
}

// formWords describes the forms of matrix products. The default form needs no words.
var formWords = map[op.Form]string{
	op.Swapped:     "weight first",
	op.BatchMatMul: "as a batch matmul",
	op.Conv:        "as a 1x1 convolution",
}

// forms names the processors that get matrix products in another form than the default, or use named kernels.
func (x *answer) forms() (out []string) {
	for i := range x.p.Procs {
		name := x.p.Procs[i].Name
		products, count := 0, map[op.Form]int{}
		for _, decision := range x.p.Decisions {
			for _, share := range decision.Shares {
				if share.Proc == name && decision.Scheme != "" {
					products++
					count[share.Form.Class()]++
				}
			}
		}

		var parts []string
		for _, form := range op.FormClasses {
			if count[form] > 0 {
				parts = append(parts, fmt.Sprintf("%d of %d matrix products %s", count[form], products,
					formWords[form]))
			}
		}

		for _, form := range slices.Sorted(maps.Keys(count)) {
			if variant := form.Kernel(); variant != "" {
				parts = append(parts, fmt.Sprintf("%d of %d matrix products by its kernels %q", count[form], products,
					variant))
			}
		}

		if parts != nil {
			out = append(out, fmt.Sprintf("%s is given %s: the arithmetic is the same, and it is faster at it.", name,
				cli.Enumerate(parts)))
		}
	}
	return out
}

// waits says how lanes notice the end of calls, where the SoC file names another way than the usual one.
func waits(plan *planir.Plan) (out []string) {
	words := map[capability.Waiting]string{capability.WaitPoll: "ask again and again whether it has ended",
		capability.WaitEvent: "are woken by its driver"}
	for i := range plan.Procs {
		proc := &plan.Procs[i]
		if word := words[proc.Wait]; word != "" {
			out = append(out, fmt.Sprintf("Lanes that wait for a call of %s %s (wait: %s in the SoC file, which hetc "+
				"probe measures).", proc.Name, word, proc.Wait))
		}
	}
	return out
}

// where says which processors execute the programs; programs with the same answer share a sentence.
func (x *answer) where(times []explain.ProgramTimes) []string {
	type group struct {
		text     string
		programs []string
	}
	var groups []group
	for i := range times {
		text := division(&times[i])
		same := slices.IndexFunc(groups, func(g group) bool { return g.text == text })
		if same < 0 {
			same = len(groups)
			groups = append(groups, group{text: text})
		}
		groups[same].programs = append(groups[same].programs, times[i].Program)
	}

	var out []string
	for _, group := range groups {
		purpose := cli.Enumerate(spoken(group.programs))
		if len(group.programs) == len(times) && len(times) > 1 {
			purpose = "answers and prompts of every size"
		}
		out = append(out, fmt.Sprintf("For %s: %s.", purpose, group.text))
	}

	return out
}

// division says which processors execute a program, and how they divide its operators.
func division(times *explain.ProgramTimes) string {
	var total int64
	for _, busy := range times.Busy {
		total += busy.NS
	}
	var procs []string
	for _, busy := range times.Busy {
		// Less than 2 % of the work is not worth naming; it makes "everything" "nearly everything".
		if float64(busy.NS) >= 0.02*float64(total) {
			procs = append(procs, busy.Proc)
		}
	}

	slices.Sort(procs)

	names := cli.Enumerate(procs)
	switch {
	case len(procs) == 1 && len(times.Busy) > 1:
		return names + " computes nearly everything"
	case len(procs) == 1:
		return names + " computes everything"
	case times.Divided > 0.5:
		// Products with several shares take most of the time of all products.
		return names + " divide the matrix products among them and compute their parts at the same time"
	case times.Divided > 0:
		return names + " share the operators, each executed by one of them, and divide some matrix products"
	}

	return names + " share the operators, each executed by one of them"
}

// bounds says how the time of a program is spent, and which rate of arithmetic or memory bounds its products.
func (x *answer) bounds(times *explain.ProgramTimes) string {
	parts := cli.Enumerate(timeParts(times))
	if times.ProductsNS <= 0 {
		return parts
	}

	if times.Rows != 1 && times.Phase != "decode" {
		rate := float64(times.Flops) / float64(times.ProductsNS) // operations per nanosecond are Gop/s
		return fmt.Sprintf("arithmetic, %.0f Gop/s in matrix products: %s", rate, parts)
	}

	rate := float64(times.WeightBytes) / float64(times.ProductsNS) // bytes per nanosecond are GB/s
	text := fmt.Sprintf("every token reads %v of weights, at %.1f GB/s while it does", unit.Bytes(times.WeightBytes),
		rate)
	if x.soc != nil {
		procs := busiest(times)
		if most, ok := x.soc.JointGBps(procs...); ok {
			text += " (" + besideProbe(rate, most, cli.Enumerate(procs)) + ")"
		}
	}

	return text + ": " + parts
}

// busiest returns the processors that work at least a tenth as long as the first one, which works longest.
func busiest(times *explain.ProgramTimes) (procs []string) {
	for _, busy := range times.Busy {
		if busy.NS*10 > times.Busy[0].NS {
			procs = append(procs, busy.Proc)
		}
	}
	return procs
}

// timeParts returns the shares of products, attention and handovers in the time of a program. Parts below half a
// percent are left out.
func timeParts(times *explain.ProgramTimes) []string {
	total := times.ProductsNS + times.AttentionNS + times.OtherNS + times.HandoverNS
	parts := []string{shareText(times.ProductsNS, total) + " of the time is matrix products"}
	for _, part := range []struct {
		ns   int64
		what string
	}{
		{times.AttentionNS, "attention"},
		{times.HandoverNS, "handing over between processors"},
		{times.OtherNS, "the rest"},
	} {
		if 200*part.ns >= total {
			parts = append(parts, shareText(part.ns, total)+" "+part.what)
		}
	}
	return parts
}
