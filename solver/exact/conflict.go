package exact

import (
	"context"
	"errors"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// conflictNodes bounds each search for a conflict.
const conflictNodes = 400

// conflict names limits of an infeasible instance that cannot be kept together: one that cannot be kept at all, else
// what is left when limits are taken away as long as it is proved that the others cannot be kept.
func conflict(ctx context.Context, j *problem.Joint) ([]problem.Limit, error) {
	u := problem.Use{PartNS: make([]int64, len(j.Parts)), RegionBytes: make([]int64, len(j.Regions)), RegionGraphs: make([]int64, len(j.Regions))}
	limits := j.Limits(&u)
	for i := range limits {
		l := &limits[i]
		var err error
		if l.Need, err = least(ctx, j, *l); err != nil {
			return nil, err
		}
		if l.Need > l.Max {
			return limits[i : i+1], nil
		}
	}
	for i := 0; i < len(limits) && len(limits) > 1; {
		fewer := slices.Delete(slices.Clone(limits), i, i+1)
		_, err := solveJoint(ctx, only(j, fewer), problem.Limits{Nodes: conflictNodes}, true)
		switch {
		case errors.Is(err, errNone):
			limits = fewer
		case err != nil:
			return nil, err
		default:
			i++
		}
	}
	return limits, nil
}

// hopeless is a limit on a time or on energy that not even the choices that take least of it keep, nil where there is none. Those
// choices share nothing: they are found at once, while a search under limits would look for long.
func hopeless(ctx context.Context, j *problem.Joint) ([]problem.Limit, error) {
	u := problem.Use{PartNS: make([]int64, len(j.Parts)), RegionBytes: make([]int64, len(j.Regions)), RegionGraphs: make([]int64, len(j.Regions))}
	taken := map[problem.Measure]problem.Use{}
	for _, l := range j.Limits(&u) {
		m := problem.Time
		switch l.Kind {
		case problem.LimitPartNS, problem.LimitTimeNS:
		case problem.LimitEnergyNJ:
			m = problem.Energy
		default:
			continue
		}
		if _, ok := taken[m]; !ok {
			x := only(j, nil)
			x.Minimise = m
			for i := range x.Parts { // a part that counts for nothing in the objective has a limit all the same
				x.Parts[i].Weight = max(1, x.Parts[i].Weight)
			}
			s, err := solveJoint(ctx, x, problem.Limits{Nodes: conflictNodes}, true)
			if err != nil {
				return nil, err
			}
			if s.Status != problem.Optimal {
				return nil, nil
			}
			taken[m] = j.Use(s.Choices)
		}
		switch use := taken[m]; l.Kind {
		case problem.LimitPartNS:
			l.Need = use.PartNS[l.Index]
		case problem.LimitTimeNS:
			l.Need = use.TimeNS
		default:
			l.Need = use.EnergyNJ
		}
		if l.Need > l.Max {
			return []problem.Limit{l}, nil
		}
	}
	return nil, nil
}

// only is the instance with these of its limits alone.
func only(j *problem.Joint, limits []problem.Limit) *problem.Joint {
	x := *j
	x.Parts, x.Regions = slices.Clone(j.Parts), slices.Clone(j.Regions)
	x.MaxBytes, x.MaxOpenNS, x.MaxEnergyNJ, x.MaxTimeNS = 0, 0, 0, 0
	for i := range x.Parts {
		x.Parts[i].MaxNS = 0
	}
	for r := range x.Regions {
		x.Regions[r].MaxBytes, x.Regions[r].MaxGraphs = 0, 0
	}
	for _, l := range limits {
		switch l.Kind {
		case problem.LimitPartNS:
			x.Parts[l.Index].MaxNS = l.Max
		case problem.LimitTimeNS:
			x.MaxTimeNS = l.Max
		case problem.LimitEnergyNJ:
			x.MaxEnergyNJ = l.Max
		case problem.LimitBytes:
			x.MaxBytes = l.Max
		case problem.LimitOpenNS:
			x.MaxOpenNS = l.Max
		case problem.LimitRegionBytes:
			x.Regions[l.Index].MaxBytes = l.Max
		case problem.LimitRegionGraphs:
			x.Regions[l.Index].MaxGraphs = int(l.Max)
		}
	}
	return &x
}

// least is a bound below what any choices take of a limit, whatever they take of others.
func least(ctx context.Context, j *problem.Joint, l problem.Limit) (int64, error) {
	x := only(j, nil)
	x.Minimise = problem.Time
	more := int64(0)
	switch l.Kind {
	case problem.LimitPartNS:
		x.Parts = []problem.Part{{Partition: x.Parts[l.Index].Partition, Weight: 1}}
	case problem.LimitTimeNS:
	case problem.LimitEnergyNJ:
		x.Minimise = problem.Energy
	default:
		x.Minimise = problem.Memory
		x.Assets = slices.Clone(j.Assets)
		for a := range x.Assets {
			as := &x.Assets[a]
			switch {
			case l.Kind == problem.LimitOpenNS:
				as.Bytes = as.OpenNS
			case l.Kind == problem.LimitRegionGraphs && as.Region == l.Index:
				as.Bytes = int64(as.Graphs)
			case l.Kind == problem.LimitBytes, l.Kind == problem.LimitRegionBytes && as.Region == l.Index:
			default:
				as.Bytes = 0
			}
		}
		if l.Kind == problem.LimitBytes {
			more = j.Resident
		}
	}
	s, err := solveJoint(ctx, x, problem.Limits{Nodes: conflictNodes}, false)
	return s.Bound + more, err
}
