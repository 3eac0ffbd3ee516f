package op

import (
	"fmt"
	"strconv"
	"strings"
)

// Group is a run of neighbouring slots of experts with equally many reserved rows each.
type Group struct{ Slots, Rows int }

// Groups are groups of slots in order, written "8x64,4x16": 8 slots of 64 rows, then 4 of 16. The written form makes
// operators with groups comparable.
type Groups string

// MaxGroups is how many groups an operator has at most.
const MaxGroups = 64

// GroupsOf returns the written form of groups.
func GroupsOf(groups []Group) Groups {
	texts := make([]string, len(groups))
	for i, group := range groups {
		texts[i] = fmt.Sprintf("%dx%d", group.Slots, group.Rows)
	}
	return Groups(strings.Join(texts, ","))
}

// List returns the groups. It is nil for a form that is not well formed.
func (g Groups) List() []Group {
	if g == "" {
		return nil
	}
	texts := strings.Split(string(g), ",")
	groups := make([]Group, len(texts))
	for i, text := range texts {
		slots, rows, _ := strings.Cut(text, "x")
		count, err1 := strconv.Atoi(slots)
		each, err2 := strconv.Atoi(rows)
		if err1 != nil || err2 != nil {
			return nil
		}
		groups[i] = Group{count, each}
	}
	return groups
}

// Slots returns the number of all slots.
func (g Groups) Slots() (count int) {
	for _, group := range g.List() {
		count += group.Slots
	}
	return count
}

// Rows returns the number of rows of all slots.
func (g Groups) Rows() (count int) {
	for _, group := range g.List() {
		count += group.Slots * group.Rows
	}
	return count
}

// RandomSalience returns the salience of a row by SalienceRandom: the high bits of the row's number times an odd
// constant (Fibonacci hashing), so that neighbouring rows are far apart and equal everywhere.
func RandomSalience(row int) uint32 { return uint32(uint64(row+1) * 0x9e3779b97f4a7c15 >> 32) }

// Validate says what is wrong with groups, nil for none: sizes are positive, and all slots and rows within the bounds
// of dimensions.
func (g Groups) Validate() error {
	groups := g.List()
	if g != GroupsOf(groups) || len(groups) > MaxGroups {
		return fmt.Errorf("groups %q: want at most %d of the form SLOTSxROWS, separated by commas", g, MaxGroups)
	}
	slots, rows := 0, 0
	for _, group := range groups {
		if group.Slots < 1 || group.Slots > maxExperts || group.Rows < 1 || group.Rows > maxDim {
			return fmt.Errorf("groups %q: %d slots of %d rows, want 1..%d of 1..%d", g, group.Slots, group.Rows,
				maxExperts, maxDim)
		}
		slots, rows = slots+group.Slots, rows+group.Slots*group.Rows
	}
	if slots > maxExperts || rows > maxDim {
		return fmt.Errorf("groups %q: %d slots of %d rows in all, want at most %d of %d", g, slots, rows, maxExperts,
			maxDim)
	}
	return nil
}
