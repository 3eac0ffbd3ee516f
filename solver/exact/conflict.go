package exact

import (
	"context"
	"errors"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// conflictNodes bounds each search for a conflict.
const conflictNodes = 400

// noUse returns the use of an instance in which nothing is chosen yet. Joint.Limits lists the limits with it.
func noUse(joint *problem.Joint) *problem.Use {
	return &problem.Use{
		PartNS: make([]int64, len(joint.Parts)), RegionBytes: make([]int64, len(joint.Regions)),
		RegionGraphs: make([]int64, len(joint.Regions)),
	}
}

// conflict names limits of an infeasible instance that cannot be kept together. If one limit alone cannot be kept, it
// is the answer. Otherwise a deletion filter finds an irreducible infeasible subset: it removes limits as long as the
// others are proved to be infeasible.
func conflict(ctx context.Context, joint *problem.Joint) ([]problem.Limit, error) {
	// A limit that no choices keep is the whole reason.
	limits := joint.Limits(noUse(joint))
	for i := range limits {
		limit := &limits[i]
		var err error
		if limit.Need, err = least(ctx, joint, *limit); err != nil {
			return nil, err
		}
		if limit.Need > limit.Max {
			return limits[i : i+1], nil
		}
	}

	// Each limit by itself can be kept: a limit stays only if the others alone were not proved to be infeasible.
	for i := 0; i < len(limits) && len(limits) > 1; {
		fewer := slices.Delete(slices.Clone(limits), i, i+1)
		_, err := solveJoint(ctx, only(joint, fewer), problem.Limits{Nodes: conflictNodes}, true)
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

// hopeless returns a limit on a time or on energy that even the choices with the least time or energy break, nil if
// there is none. Without limits the parts are independent, so these choices are found at once, while a search under
// limits would take long.
func hopeless(ctx context.Context, joint *problem.Joint) ([]problem.Limit, error) {
	uses := map[problem.Measure]problem.Use{}
	for _, limit := range joint.Limits(noUse(joint)) {
		measure := problem.Time
		switch limit.Kind {
		case problem.LimitPartNS, problem.LimitTimeNS:
		case problem.LimitEnergyNJ:
			measure = problem.Energy
		default:
			continue
		}

		use, ok := uses[measure]
		if !ok {
			unlimited := only(joint, nil)
			unlimited.Minimise = measure
			for p := range unlimited.Parts { // a part that counts for nothing in the objective has a limit all the same
				unlimited.Parts[p].Weight = max(1, unlimited.Parts[p].Weight)
			}
			solution, err := solveJoint(ctx, unlimited, problem.Limits{Nodes: conflictNodes}, true)
			if err != nil || solution.Status != problem.Optimal {
				return nil, err
			}
			use = joint.Use(solution.Choices)
			uses[measure] = use
		}

		switch limit.Kind {
		case problem.LimitPartNS:
			limit.Need = use.PartNS[limit.Index]
		case problem.LimitTimeNS:
			limit.Need = use.TimeNS
		default:
			limit.Need = use.EnergyNJ
		}
		if limit.Need > limit.Max {
			return []problem.Limit{limit}, nil
		}
	}
	return nil, nil
}

// only returns the instance with these limits and no others.
func only(joint *problem.Joint, limits []problem.Limit) *problem.Joint {
	out := *joint
	out.Parts, out.Regions = slices.Clone(joint.Parts), slices.Clone(joint.Regions)

	out.MaxBytes, out.MaxOpenNS, out.MaxEnergyNJ, out.MaxTimeNS = 0, 0, 0, 0
	for p := range out.Parts {
		out.Parts[p].MaxNS = 0
	}
	for r := range out.Regions {
		out.Regions[r].MaxBytes, out.Regions[r].MaxGraphs = 0, 0
	}

	for _, limit := range limits {
		switch limit.Kind {
		case problem.LimitPartNS:
			out.Parts[limit.Index].MaxNS = limit.Max
		case problem.LimitTimeNS:
			out.MaxTimeNS = limit.Max
		case problem.LimitEnergyNJ:
			out.MaxEnergyNJ = limit.Max
		case problem.LimitBytes:
			out.MaxBytes = limit.Max
		case problem.LimitOpenNS:
			out.MaxOpenNS = limit.Max
		case problem.LimitRegionBytes:
			out.Regions[limit.Index].MaxBytes = limit.Max
		case problem.LimitRegionGraphs:
			out.Regions[limit.Index].MaxGraphs = int(limit.Max)
		}
	}
	return &out
}

// least returns a lower bound of what any choices take of a limit, if no other limit holds. For limits over assets it
// minimises memory in an instance whose assets have as bytes what they take of the limit.
func least(ctx context.Context, joint *problem.Joint, limit problem.Limit) (int64, error) {
	relaxed := only(joint, nil)
	relaxed.Minimise = problem.Time

	resident := int64(0)
	switch limit.Kind {
	case problem.LimitPartNS:
		relaxed.Parts = []problem.Part{{Partition: relaxed.Parts[limit.Index].Partition, Weight: 1}}
	case problem.LimitTimeNS:
	case problem.LimitEnergyNJ:
		relaxed.Minimise = problem.Energy
	default:
		relaxed.Minimise = problem.Memory
		relaxed.Assets = slices.Clone(joint.Assets)
		for a := range relaxed.Assets {
			relaxed.Assets[a].Bytes = takenOf(&joint.Assets[a], limit)
		}
		if limit.Kind == problem.LimitBytes {
			resident = joint.Resident
		}
	}

	solution, err := solveJoint(ctx, relaxed, problem.Limits{Nodes: conflictNodes}, false)
	return solution.Bound + resident, err
}

// takenOf returns what an open asset takes of a limit over assets.
func takenOf(asset *problem.Asset, limit problem.Limit) int64 {
	here := asset.Region == limit.Index
	switch {
	case limit.Kind == problem.LimitBytes, limit.Kind == problem.LimitRegionBytes && here:
		return asset.Bytes
	case limit.Kind == problem.LimitOpenNS:
		return asset.OpenNS
	case limit.Kind == problem.LimitRegionGraphs && here:
		return int64(asset.Graphs)
	}
	return 0
}
