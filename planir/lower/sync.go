package lower

import "github.com/hetc/hetc/planir"

// synchronise gives the tasks, listed in an order that one processor alone could execute, the flags
// that make lanes wait for each other, and returns how many flags it used.
//
// A task must follow, on another lane, every earlier task that writes what it reads or writes, or
// reads what it writes, in the same iteration and (for repeated sections) in the one before. Waits
// implied by others within the iteration are left out; what a lane may still know from the
// iteration before is not used, which keeps the argument local to two iterations.
// RATIONALE: Why are there two analyses of flags?
func synchronise(tasks []*task, repeated bool) int {
	lane := map[string]int{}
	for _, t := range tasks {
		if _, ok := lane[t.proc]; !ok {
			lane[t.proc] = len(lane)
		}
	}
	if len(lane) == 1 {
		return 0
	}
	n := len(tasks)
	// known[l][m]: last task of lane m that lane l knows to be finished, as its index, shifted by -n
	// for the iteration before; afterwards done[i] is what is known once task i is finished.
	const nothing = -1 << 30
	known := make([][]int, len(lane))
	for l := range known {
		known[l] = make([]int, len(lane))
		for m := range known[l] {
			known[l][m] = nothing
		}
	}
	done := make([][]int, n)
	needed := map[int]bool{}
	waits := make([][]planir.Wait, n)
	for j, t := range tasks {
		me := lane[t.proc]
		latest := make([]int, len(lane)) // per lane, the latest task to wait for
		for m := range latest {
			latest[m] = nothing
		}
		for i := 0; i < j; i++ {
			if m := lane[tasks[i].proc]; m != me && conflict(tasks[i], t) {
				latest[m] = i
			}
		}
		if repeated {
			for i := 0; i < n; i++ {
				// Only tasks after j in the order matter: an earlier one conflicts in this iteration too.
				if m := lane[tasks[i].proc]; i > j && m != me && latest[m] < 0 && conflict(tasks[i], t) {
					latest[m] = i - n
				}
			}
		}
		for m, i := range latest {
			if i == nothing || known[me][m] >= i {
				continue
			}
			// Waiting for another lane may already imply this one.
			implied := false
			for m2, i2 := range latest {
				if m2 != m && i2 >= 0 && known[me][m2] < i2 && done[i2][m] >= i {
					implied = true
				}
			}
			if implied {
				continue
			}
			index := i
			if i < 0 {
				index += n
			}
			needed[index] = true
			waits[j] = append(waits[j], planir.Wait{Flag: index, Back: i < 0})
		}
		for _, w := range waits[j] {
			m := lane[tasks[w.Flag].proc]
			if w.Back {
				known[me][m] = max(known[me][m], w.Flag-n)
				continue
			}
			known[me][m] = max(known[me][m], w.Flag)
			for k, v := range done[w.Flag] {
				known[me][k] = max(known[me][k], v)
			}
		}
		known[me][me] = j
		done[j] = append([]int(nil), known[me]...)
	}
	// Flags are numbered in the order of the tasks that set them.
	number := map[int]int{}
	for i, t := range tasks {
		if needed[i] {
			f := len(number)
			number[i] = f
			t.step.Set = &f
		}
	}
	for j, t := range tasks {
		for _, w := range waits[j] {
			t.step.Wait = append(t.step.Wait, planir.Wait{Flag: number[w.Flag], Back: w.Back})
		}
	}
	return len(number)
}

// conflict reports whether b must not overtake a.
func conflict(a, b *task) bool {
	return overlap(a.writes, b.reads) || overlap(a.writes, b.writes) || overlap(a.reads, b.writes)
}

func overlap(a, b []planir.View) bool {
	for _, v := range a {
		for _, w := range b {
			if v.Overlaps(w) {
				return true
			}
		}
	}
	return false
}
