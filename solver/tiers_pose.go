package solver

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// TierInstance is the tiers problem of one bucket, with the things that its indices stand for.
type TierInstance struct {
	Problem  *problem.Tiers
	NPU, CPU string
	Schemes  []op.Scheme // of an expert's products, in order
	Loads    *workload.Loads
	Layers   []int  // numbers in the model
	Rows     int    // of the bucket
	Salience string // by which rows are dropped, empty: none are
}

// PoseTiers prices the experts of a model in a program of that many rows: groups on the SoC's processor of static
// shapes, single rows on its control processor. schemes are those of the products (see models.Model.ExpertOps). Work
// that all choices have in common is left out: routing and summing up. The two processors work at the same time unless
// they share a core.
func PoseTiers(in Input, rows int, schemes []op.Scheme, room TierRoom) (*TierInstance, error) {
	if err := in.Loads.Validate(); err != nil {
		return nil, err
	}
	if err := in.Loads.Fits(in.Model); err != nil {
		return nil, err
	}
	npu, err := staticProcessor(in.SoC)
	if err != nil {
		return nil, err
	}
	instance := &TierInstance{Schemes: schemes, Loads: in.Loads, CPU: in.SoC.Control, NPU: npu.Name, Rows: rows,
		Layers: in.Model.ExpertLayers()}
	if instance.CPU == instance.NPU {
		return nil, diag.New(diag.ClassInfeasible,
			"capacity tiers: the control processor %q is the one with static shapes, and overflow needs another",
			instance.CPU)
	}

	want := workload.Experts{}
	if in.Workload != nil {
		want = in.Workload.Experts
	}

	posed := &problem.Tiers{
		Name: fmt.Sprintf("%s on %s, %d rows", in.Model.Name, in.SoC.Name, rows), Tile: max(1, npu.Tile.M),
		MaxTiers: cmp.Or(want.Tiers, workload.DefaultTiers), ExpertBytes: in.Model.ExpertBytes(schemes),
		OwnGraphs: npu.WeightsInArtifacts, ShapeNS: openingNS(npu, want.CallsPerOpen), GraphBytes: npu.GraphBytes,
		MaxGraphs: room.Graphs, Limits: room.limits(in.Model, schemes, npu),
	}
	if in.drops != nil && in.drops.salience != "" {
		posed.Drop, posed.MaxDropPPM, instance.Salience = true, ppm(in.drops.share), in.drops.salience
	}
	// Processors that share a core cannot work at the same time.
	posed.Serial = slices.ContainsFunc(npu.Cores,
		func(core int) bool { return slices.Contains(in.SoC.Processor(instance.CPU).Cores, core) })
	instance.Problem = posed

	most, err := instance.addLoads()
	if err != nil {
		return nil, err
	}
	if posed.Capacities = want.Capacities; len(posed.Capacities) == 0 {
		posed.Capacities = capacities(posed.Tile, most)
	}
	for _, capacity := range posed.Capacities {
		if capacity%posed.Tile != 0 {
			return nil, diag.New(diag.ClassInput,
				"experts.capacities: %d rows are no multiple of %d, the tile of processor %q",
				capacity, posed.Tile, instance.NPU)
		}
	}
	if err := instance.addPrices(price.NewFitted(in.Costs, in.SoC), in.Model, most, npu.Fuses); err != nil {
		return nil, err
	}
	return instance, posed.Validate()
}

// addLoads fills in the rows of every expert, and returns the most that one gets in any chunk.
func (x *TierInstance) addLoads() (most int, err error) {
	loads, err := x.Loads.Scaled(x.Rows)
	if err != nil {
		return 0, err
	}
	for index, layer := range loads {
		x.Problem.Layers = append(x.Problem.Layers,
			problem.TierLayer{Name: fmt.Sprintf("layers.%d", x.Layers[index]), Rows: layer})
		for _, list := range layer {
			most = max(most, int(slices.Max(list)))
		}
	}
	return most, nil
}

// addPrices fills in three kinds of times: those of groups on the NPU, those of up to most rows of an expert on the
// control processor, so that any overflow is a look-up, and those of a layer's hand-overs.
func (x *TierInstance) addPrices(prices *price.Fitted, model *models.Model, most int, fuses bool) (err error) {
	posed := x.Problem
	if posed.GroupNS, err = groupPrices(prices, x, model, posed, fuses); err != nil {
		return err
	}

	posed.CPUNS = make([]int64, most+1)
	for rows := 1; rows <= most; rows++ {
		for _, operator := range expertOps(model, x.Schemes, rows) {
			estimate, err := prices.One(price.Task{Proc: x.CPU, Op: operator})
			if err != nil {
				return fmt.Errorf("price an expert: %w", err)
			}
			posed.CPUNS[rows] += estimate.NS
		}
	}

	for _, link := range [][2]string{{x.CPU, x.NPU}, {x.NPU, x.CPU}} {
		estimate, err := prices.Handover(link[0], link[1])
		if err != nil {
			return err
		}
		posed.LayerNS += estimate.NS
	}
	return nil
}

// openingNS returns the share of the time to open a graph that each of so many calls pays, 0 if the number is 0.
func openingNS(proc *socs.Processor, calls int) int64 {
	if calls == 0 {
		return 0
	}
	return openNS(proc) / int64(calls)
}

// staticProcessor returns the processor that groups of experts run on: the first NPU of static shapes, else any such.
func staticProcessor(soc *socs.SoC) (*socs.Processor, error) {
	var out *socs.Processor
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		isFirstNPU := proc.Kind == socs.KindNPU && out != nil && out.Kind != socs.KindNPU
		if proc.StaticShapes && (out == nil || isFirstNPU) {
			out = proc
		}
	}
	if out == nil {
		return nil, diag.New(diag.ClassInfeasible,
			"capacity tiers: no processor of SoC %q has static shapes only, and tiers are for those", soc.Name).
			WithHint("leave --loads out, or plan for a SoC with such an NPU: hetc socs list")
	}
	return out, nil
}

// ppm returns a share in parts per million.
func ppm(share float64) int64 { return int64(math.Round(share * 1e6)) }

// tileSteps are the capacities to choose from, in tiles.
var tileSteps = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}

// leastCapacity is the smallest useful capacity, in rows.
const leastCapacity = 8

// capacities returns tileSteps up to the capacity that holds the most rows. Tiles smaller than leastCapacity are
// multiplied.
func capacities(tile, most int) (out []int) {
	tile *= max(1, (leastCapacity+tile-1)/tile)
	for _, n := range tileSteps {
		out = append(out, n*tile)
		if n*tile >= most {
			break
		}
	}
	return out
}

// expertOps returns an expert's operators with their schemes, and the quantisation of rows that those need.
func expertOps(model *models.Model, schemes []op.Scheme, rows int) (out []op.Op) {
	product := 0
	for _, operator := range model.ExpertOps(rows) {
		if operator.Kind == op.MatMul {
			operator.Scheme = schemes[product]
			if product++; operator.Scheme.QuantisedRows() {
				out = append(out, operator.Scheme.QuantRows(rows, operator.K, 1))
			}
		}
		out = append(out, operator)
	}
	return out
}

// maxGroup is the most experts of a group if no limit says otherwise.
const maxGroup = 64

// groupPrices returns the times of groups in ns, by tier and number of experts. They are the times of the groups'
// operators as the plan's program prices them, less all launches but one if the processor joins them, plus the copies
// in and out over links. A group has at most as many experts as fit the bytes of a graph.
func groupPrices(
	prices *price.Fitted, instance *TierInstance, model *models.Model, posed *problem.Tiers, fuses bool,
) (out [][]int64, err error) {
	size := min(maxGroup, model.Experts)
	if posed.GraphBytes > 0 {
		size = min(size, problem.MostExperts(posed.GraphBytes, posed.ExpertBytes))
	}

	launch, err := prices.Launch(instance.NPU)
	if err != nil {
		return nil, err
	}

	for _, rows := range posed.Capacities {
		var list []int64
		for experts := 1; experts <= size; experts++ {
			operators := groupOps(model, instance.Schemes, experts, rows)
			var ns int64
			for _, operator := range operators {
				estimate, err := prices.One(price.Task{Proc: instance.NPU, Op: operator})
				if err != nil {
					return nil, fmt.Errorf("price a group of %d experts of %d rows: %w", experts, rows, err)
				}
				ns += estimate.NS
			}

			if fuses {
				ns = max(launch.NS, ns-int64(len(operators)-1)*launch.NS)
			}
			for _, link := range [][2]string{{instance.CPU, instance.NPU}, {instance.NPU, instance.CPU}} {
				moved, err := prices.Copy(link[0], link[1], int64(experts)*int64(rows)*int64(model.Hidden)*4)
				if err != nil {
					return nil, err
				}
				ns += moved.NS
			}

			list = append(list, ns)
		}
		out = append(out, list)
	}
	return out, nil
}

// groupOps returns the operators of a group of so many experts with so many rows each.
func groupOps(model *models.Model, schemes []op.Scheme, experts, rows int) []op.Op {
	out := expertOps(model, schemes, experts*rows)
	for i := range out {
		if out[i].Kind == op.MatMul {
			out[i].Kind, out[i].Experts = op.GroupMatMul, experts
		}
	}
	return out
}

// Plan returns a solution in the words of a plan, nil for the one without slots: experts are dynamic then. Large slots
// come first, and in them the busiest experts.
func (x *TierInstance) Plan(solution problem.TierSolution) *planir.ExpertTiers {
	posed, groups := x.Problem, x.Problem.Groups()
	chunks := int64(posed.Chunks())
	out := &planir.ExpertTiers{
		Rows: x.Rows, Loads: x.Loads.Source, Experts: posed.Experts(), Overflow: planir.OverflowExact,
		ExpectNS: solution.Objective / chunks, BoundNS: solution.Bound / chunks, Status: string(solution.Status),
	}
	if x.Loads.Generator != "" {
		out.Loads += " " + x.Loads.Generator
	}
	if posed.Drop {
		out.Overflow, out.Salience = planir.OverflowDrop, x.Salience
	}

	var npu int64
	for tier := len(solution.Slots) - 1; tier >= 0; tier-- {
		for _, size := range groups[tier].Sizes(solution.Slots[tier]) {
			ns := posed.GroupNS[tier][size-1]
			out.Groups = append(out.Groups, planir.ExpertGroup{Slots: size, Rows: posed.Capacities[tier], ExpectNS: ns})
			npu += ns
		}
	}

	if len(out.Groups) == 0 {
		return nil
	}

	left := int64(0) // rows for the dynamic products, in all layers and chunks
	for index, choices := range solution.Choices {
		layer, dynamic := x.layer(index, choices, npu)
		out.Layers = append(out.Layers, layer)
		left += dynamic
	}
	if !posed.Drop || out.Slots() < out.Experts {
		all := chunks * int64(len(out.Layers))
		out.Sent = int(max(1, (left+all-1)/all))
	}
	return out
}

// layer returns the decisions and expectations for one layer, and how many rows it leaves for the dynamic products in
// all chunks.
func (x *TierInstance) layer(index int, choices []int, npu int64) (out planir.ExpertLayer, dynamic int64) {
	posed := x.Problem
	out.Layer = x.Layers[index]
	loads := posed.Layers[index].MeanLoads()
	order := make([]int, len(choices))
	for expert := range order {
		order[expert] = expert
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(choices[b], choices[a]), cmp.Compare(loads[b], loads[a]))
	})

	var all, moved, over, ns int64
	for _, expert := range order {
		if choices[expert] > 0 {
			out.Slots = append(out.Slots, expert)
		}
		for _, rows := range posed.Layers[index].Rows[expert] {
			left := int64(posed.Left(rows, choices[expert]))
			all += int64(rows)
			if choices[expert] > 0 {
				moved, over = moved+int64(rows)-left, over+left
			}
			if choices[expert] == 0 || !posed.Drop {
				dynamic += left
			}
		}
	}

	for chunk := range posed.Chunks() {
		cpu := posed.CallNS
		for expert, choice := range choices {
			cpu += posed.LeftNS(posed.Layers[index].Rows[expert][chunk], choice)
		}
		if posed.Serial {
			ns += npu + cpu
		} else {
			ns += max(npu, cpu)
		}
	}

	out.Moved, out.Overflow = share(float64(moved), float64(all)), share(float64(over), float64(all))
	out.ExpectNS = ns/int64(posed.Chunks()) + posed.LayerNS
	return out, dynamic
}

// share returns part over all, rounded to six digits behind the point, so that equal solutions read alike on every
// machine; 0 if all is 0.
func share(part, all float64) float64 {
	if all == 0 {
		return 0
	}
	return math.Round(part/all*1e6) / 1e6
}
