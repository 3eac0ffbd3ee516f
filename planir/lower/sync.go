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
	for _, task := range tasks {
		if _, ok := lane[task.proc]; !ok {
			lane[task.proc] = len(lane)
		}
	}
	if len(lane) == 1 {
		return 0
	}
	count := len(tasks)
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
	done := make([][]int, count)
	needed := map[int]bool{}
	waits := make([][]planir.Wait, count)
	for j, task := range tasks {
		me := lane[task.proc]
		latest := make([]int, len(lane)) // per lane, the latest task to wait for
		for m := range latest {
			latest[m] = nothing
		}
		for i := 0; i < j; i++ {
			if m := lane[tasks[i].proc]; m != me && conflict(tasks[i], task) {
				latest[m] = i
			}
		}
		if repeated {
			for i := 0; i < count; i++ {
				// Only tasks after j in the order matter: an earlier one conflicts in this iteration too.
				if m := lane[tasks[i].proc]; i > j && m != me && latest[m] < 0 && conflict(tasks[i], task) {
					latest[m] = i - count
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
				index += count
			}
			needed[index] = true
			waits[j] = append(waits[j], planir.Wait{Flag: index, Back: i < 0})
		}
		for _, wait := range waits[j] {
			m := lane[tasks[wait.Flag].proc]
			if wait.Back {
				known[me][m] = max(known[me][m], wait.Flag-count)
				continue
			}
			known[me][m] = max(known[me][m], wait.Flag)
			for other, latestThere := range done[wait.Flag] {
				known[me][other] = max(known[me][other], latestThere)
			}
		}
		known[me][me] = j
		done[j] = append([]int(nil), known[me]...)
	}
	// Flags are numbered in the order of the tasks that set them.
	number := map[int]int{}
	for i, task := range tasks {
		if needed[i] {
			flag := len(number)
			number[i] = flag
			task.step.Set = &flag
		}
	}
	for j, task := range tasks {
		for _, wait := range waits[j] {
			task.step.Wait = append(task.step.Wait, planir.Wait{Flag: number[wait.Flag], Back: wait.Back})
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
