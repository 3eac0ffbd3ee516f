package solver

import (
	"github.com/hetc/hetc/planir"
)

// clock is when something happens on every thread, in ns, for one assumption about the steps' times.
type clock map[string]int64

// timeline predicts a lowered program by going through its steps: each lane's one after another, a
// wait until its flag has been set and handed over, all lanes meeting between sections. It knows
// nothing of how the decisions came about. Lanes of one thread take turns. step returns the time of a step on a lane. It returns the time of
// the whole program and of each section.
func timeline(ph *planir.Phase, thread func(lane string) string, step func(lane string, st *planir.Step) int64, handover func(from, to string) int64) (total int64, sections []int64) {
	lanes := map[string]bool{}
	for i := range ph.Sections {
		for _, l := range ph.Sections[i].Lanes {
			lanes[l.Proc] = true
		}
	}
	var meet int64 // for all lanes to notice that a section has ended
	for a := range lanes {
		for b := range lanes {
			if a != b {
				meet = max(meet, handover(a, b))
			}
		}
	}
	for i := range ph.Sections {
		s := &ph.Sections[i]
		sections = append(sections, section(s, thread, step, handover)+meet)
		total += sections[i]
	}
	return total, sections
}

func section(s *planir.Section, thread func(lane string) string, step func(lane string, st *planir.Step) int64, handover func(from, to string) int64) int64 {
	type setting struct {
		at   int64
		lane string
	}
	type instance struct{ flag, iter int }
	set := map[instance]setting{}
	now := clock{}
	pos := make([]int, len(s.Lanes))
	iters := max(1, s.Layers)
	for progress := true; progress; {
		progress = false
		for l := range s.Lanes {
			lane := &s.Lanes[l]
		next:
			for pos[l] < len(lane.Steps)*iters {
				st, iter := &lane.Steps[pos[l]%len(lane.Steps)], pos[l]/len(lane.Steps)
				on := thread(lane.Proc)
				start := now[on]
				for _, w := range st.Wait {
					k := instance{w.Flag, iter}
					if w.Back {
						k.iter--
					}
					if k.iter < 0 {
						continue
					}
					f, ok := set[k]
					if !ok {
						break next
					}
					// A flag that was set long ago costs nothing.
					start = max(start, f.at+handover(f.lane, lane.Proc))
				}
				now[on] = start + step(lane.Proc, st)
				if st.Set != nil {
					set[instance{*st.Set, iter}] = setting{now[on], lane.Proc}
				}
				pos[l]++
				progress = true
			}
		}
	}
	var end int64
	for l := range s.Lanes {
		if pos[l] < len(s.Lanes[l].Steps)*iters {
			panic("BUG: lanes of " + s.Name + " wait in a circle, which rule P008 excludes")
		}
		end = max(end, now[thread(s.Lanes[l].Proc)])
	}
	return end
}
