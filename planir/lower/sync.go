package lower

import (
	"slices"

	"github.com/hetc/hetc/planir"
)

// synchronise gives the tasks, listed in an order that one processor alone could execute, the flags
// that make lanes wait for each other, and returns how many flags it used.
//
// A task must follow, on another lane, every earlier task that writes what it reads or writes, or
// reads what it writes, in the same iteration and (for repeated sections) in the one before. Waits
// implied by others within the iteration are left out; what a lane may still know from the
// iteration before is not used, which keeps the argument local to two iterations.
//
// RATIONALE: Why are there two analyses of flags?
//
// The method is vector clocks: the state says of every lane which task of every other lane it knows to be finished. A
// task waits for the latest conflicting task of each lane unless its lane knows of that, by itself or through another
// wait. It costs a comparison of all pairs of tasks.
func synchronise(tasks []*task, repeated bool) int {
	state := ordering{tasks: tasks, lane: map[string]int{}}
	for _, task := range tasks {
		if _, ok := state.lane[task.proc]; !ok {
			state.lane[task.proc] = len(state.lane)
		}
	}
	if len(state.lane) == 1 {
		return 0
	}

	state.done, state.waits = make([][]int, len(tasks)), make([][]planir.Wait, len(tasks))
	for range state.lane {
		state.known = append(state.known, state.newClock())
	}
	for index := range tasks {
		state.wait(index, state.latest(index, repeated))
	}
	return state.number()
}

// nothing stands for no task of a lane.
const nothing = -1 << 30

// ordering is the state of synchronise. Tasks are named by their index, those of the iteration before by their index
// less the number of tasks.
type ordering struct {
	tasks []*task
	lane  map[string]int  // by processor
	known [][]int         // of each lane, the last task of each that it knows to be finished
	done  [][]int         // of each task, what its lane knows once it is finished
	waits [][]planir.Wait // of each task; a Flag is the index of the task that sets it
}

// newClock returns a clock that knows nothing.
func (o *ordering) newClock() []int { return slices.Repeat([]int{nothing}, len(o.lane)) }

// latest returns, for each other lane, its latest task that the given task must follow.
func (o *ordering) latest(index int, repeated bool) []int {
	this := o.tasks[index]
	own, count := o.lane[this.proc], len(o.tasks)
	latest := o.newClock()
	for i, earlier := range o.tasks[:index] {
		if lane := o.lane[earlier.proc]; lane != own && mustFollow(earlier, this) {
			latest[lane] = i
		}
	}
	if !repeated {
		return latest
	}

	// Of the iteration before only tasks behind this one matter: one in front of it conflicts in this iteration too.
	for i := index + 1; i < count; i++ {
		if lane := o.lane[o.tasks[i].proc]; lane != own && latest[lane] < 0 && mustFollow(o.tasks[i], this) {
			latest[lane] = i - count
		}
	}
	return latest
}

// wait makes a task wait for the latest tasks of other lanes, unless other waits imply it, and notes what its lane
// knows afterwards.
func (o *ordering) wait(index int, latest []int) {
	own, count := o.lane[o.tasks[index].proc], len(o.tasks)
	known := o.known[own]
	for lane, task := range latest {
		if task == nothing || known[lane] >= task || o.implied(known, latest, lane) {
			continue
		}

		flag := task
		if task < 0 {
			flag += count
		}
		o.waits[index] = append(o.waits[index], planir.Wait{Flag: flag, Back: task < 0})
	}

	// A lane that has waited for a task knows what the task's lane knew; across iterations only the task itself.
	for _, wait := range o.waits[index] {
		lane := o.lane[o.tasks[wait.Flag].proc]
		if wait.Back {
			known[lane] = max(known[lane], wait.Flag-count)
			continue
		}
		known[lane] = max(known[lane], wait.Flag)
		for other, task := range o.done[wait.Flag] {
			known[other] = max(known[other], task)
		}
	}
	known[own] = index
	o.done[index] = slices.Clone(known)
}

// implied reports whether waiting for another lane's task in this iteration implies the wait for a lane's.
func (o *ordering) implied(known, latest []int, lane int) bool {
	for other, task := range latest {
		if other != lane && task >= 0 && known[other] < task && o.done[task][lane] >= latest[lane] {
			return true
		}
	}
	return false
}

// number numbers the flags in the order of the tasks that set them, and returns how many there are.
func (o *ordering) number() int {
	needed := make([]bool, len(o.tasks))
	for _, waits := range o.waits {
		for _, wait := range waits {
			needed[wait.Flag] = true
		}
	}

	number := map[int]int{}
	for i, task := range o.tasks {
		if needed[i] {
			flag := len(number)
			number[i] = flag
			task.step.Set = &flag
		}
	}
	for i, task := range o.tasks {
		for _, wait := range o.waits[i] {
			task.step.Wait = append(task.step.Wait, planir.Wait{Flag: number[wait.Flag], Back: wait.Back})
		}
	}
	return len(number)
}

// mustFollow reports whether a task must not overtake an earlier one: one of them writes what the other touches.
func mustFollow(earlier, later *task) bool {
	return overlap(earlier.writes, later.reads) || overlap(earlier.writes, later.writes) ||
		overlap(earlier.reads, later.writes)
}

// overlap reports whether a view of one list shares an element with one of the other.
func overlap(list, others []planir.View) bool {
	return slices.ContainsFunc(list, func(view planir.View) bool { return overlapsAny(view, others) })
}
