package executor_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// mutable is a plan to change, with what executing it takes.
type mutable struct {
	name  string
	model *models.Model
	plan  *planir.Plan
	cal   *calibration.Calibration
}

// mutablePlans have every kind of program there is: batches and programs beside others, capacity tiers, chunks in
// flight, heads in a pipeline, and shadow outliers.
func mutablePlans(t testing.TB) []mutable {
	t.Helper()
	first, second := cores(t)
	pair := pairOn(first, second)
	model := func(name string) *models.Model {
		opened, err := models.Open(filepath.Join("../../testdata/arch", name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { opened.Close() })
		return opened
	}
	llama, moe := model("llama-plain"), model("qwen2-moe-shared")
	random := rand.New(rand.NewPCG(1, 2))

	beside := batchPlan(t, llama, []int{2, 3}, planSpec{
		procs: pair, rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C, layout: byColumns,
	})
	beside.Beside = &planir.Beside{Prefill: "b", Decode: "a"}
	graph := llama.Graph()
	if err := lower.Lower(beside, &graph); err != nil {
		t.Fatal(err)
	}

	exact := tiersOf(moe, 16, planir.OverflowExact, planir.ExpertGroup{Slots: 2, Rows: 3},
		planir.ExpertGroup{Slots: 1, Rows: 9})
	dropping := tiersOf(moe, 16, planir.OverflowDrop, planir.ExpertGroup{Slots: 2, Rows: 4})
	tiers := makePlan(t, moe, planSpec{
		procs: pair, rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C, layout: groupsOn("b"),
		tiers: []planir.ExpertTiers{exact},
	})
	dropped := makePlan(t, moe, planSpec{
		procs: pair, rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: groupsOn("b"),
		tiers: []planir.ExpertTiers{dropping},
	})

	chunks := inFlight(t, moe, makePlan(t, moe, planSpec{
		procs: pair, rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: byRole,
	}), 16, true, alternating)

	observed := ranged(t, llama, first, tokens(random, llama.Vocab, 30))
	shadows := folded(t, makePlan(t, llama, planSpec{
		procs: pair, rows: []int{1, 16}, context: 64, scheme: op.A8OQ8C, layout: byColumns,
	}), llama, observed)

	sparse := attentive(t, llama, 0.3)
	selecting := sparsePlan(t, llama, sparse, sparseSpec{
		procs: pair, rows: []int{1, 16}, sparse: []int{1, 16}, context: 64, block: 8, cache: op.F32,
	})
	heads := inPipelines(t, llama, selecting, 1, random)

	return []mutable{
		{name: "beside", model: llama, plan: beside},
		{name: "tiers", model: moe, plan: tiers},
		{name: "dropped rows", model: moe, plan: dropped},
		{name: "chunks in flight", model: moe, plan: chunks},
		{name: "heads in a pipeline", model: llama, plan: heads, cal: sparse},
		{name: "shadow outliers", model: llama, plan: shadows, cal: observed},
	}
}

// interesting are numbers to put in the place of another one.
func interesting(random *rand.Rand, old int64) int64 {
	list := []int64{0, 1, 2, -1, old + 1, old - 1, 2 * old, old / 2, old + 8, 16, 64, 1 << 16,
		1 << 31, 1 << 40, math.MaxInt64, math.MinInt64}
	return list[random.IntN(len(list))]
}

// mutate changes one value of a plan and returns where: at every level it goes on in a random field or element. Texts
// are replaced by others of their type.
func mutate(random *rand.Rand, value reflect.Value, texts map[string][]string) string {
	switch value.Kind() {
	case reflect.Pointer:
		return mutatePointer(random, value, texts)
	case reflect.Struct:
		at := random.IntN(value.NumField())
		program, isPlan := value.Type().FieldByName("Program")
		if isPlan && random.IntN(2) == 0 { // half of the changes of a plan
			at = program.Index[0]
		}
		if where := mutate(random, value.Field(at), texts); where != "" {
			return "." + value.Type().Field(at).Name + where
		}
		return ""
	case reflect.Slice:
		return mutateList(random, value, texts)
	case reflect.Array:
		at := random.IntN(value.Len())
		return fmt.Sprintf("[%d]", at) + mutate(random, value.Index(at), texts)
	case reflect.String:
		return mutateText(random, value, texts[value.Type().String()])
	}
	return mutateNumber(random, value)
}

// mutatePointer makes or removes what a pointer points to, or changes it.
func mutatePointer(random *rand.Rand, value reflect.Value, texts map[string][]string) string {
	if value.IsNil() {
		if random.IntN(4) > 0 {
			return ""
		}
		value.Set(reflect.New(value.Type().Elem()))
		return " made"
	}
	if random.IntN(12) == 0 {
		value.SetZero()
		return " removed"
	}
	return mutate(random, value.Elem(), texts)
}

// mutateText empties a text or puts another one in its place.
func mutateText(random *rand.Rand, value reflect.Value, others []string) string {
	old := value.String()
	switch {
	case random.IntN(8) == 0:
		value.SetString("")
	case len(others) > 0:
		value.SetString(others[random.IntN(len(others))])
	}
	if value.String() == old {
		return ""
	}
	return fmt.Sprintf(" %q -> %q", old, value.String())
}

// mutateNumber changes a number or a truth value.
func mutateNumber(random *rand.Rand, value reflect.Value) string {
	switch value.Kind() {
	case reflect.Int, reflect.Int64, reflect.Int32:
		old := value.Int()
		value.SetInt(interesting(random, old))
		if value.Int() == old {
			return ""
		}
		return fmt.Sprintf(" %d -> %d", old, value.Int())
	case reflect.Uint8:
		old := value.Uint()
		value.SetUint(uint64(interesting(random, int64(old))) & 255)
		return fmt.Sprintf(" %d -> %d", old, value.Uint())
	case reflect.Float32, reflect.Float64:
		old := value.Float()
		value.SetFloat([]float64{0, 1, -1, 1e-30, 1e30, old * 2, old / 2}[random.IntN(7)])
		return fmt.Sprintf(" %v -> %v", old, value.Float())
	case reflect.Bool:
		value.SetBool(!value.Bool())
		return fmt.Sprintf(" -> %v", value.Bool())
	}
	return ""
}

// mutateList changes an element of a list, or which elements there are.
func mutateList(random *rand.Rand, value reflect.Value, texts map[string][]string) string {
	n := value.Len()
	if n == 0 {
		if random.IntN(4) == 0 && value.CanSet() {
			value.Set(reflect.Append(value, reflect.Zero(value.Type().Elem())))
			return " has a first element"
		}
		return ""
	}

	at, other := random.IntN(n), random.IntN(n)
	switch random.IntN(16) {
	case 0: // remove
		value.Set(reflect.AppendSlice(value.Slice3(0, at, at), value.Slice(at+1, n)))
		return fmt.Sprintf("[%d] removed", at)
	case 1: // twice
		value.Set(reflect.Append(value, value.Index(at)))
		return fmt.Sprintf("[%d] again at the end", at)
	case 2: // swap
		if at == other {
			return ""
		}
		reflect.Swapper(value.Interface())(at, other)
		return fmt.Sprintf("[%d] and [%d] swapped", at, other)
	}
	if where := mutate(random, value.Index(at), texts); where != "" {
		return fmt.Sprintf("[%d]", at) + where
	}
	return ""
}

// textsOf collects the texts of a plan by their type: what one of them may be replaced by.
func textsOf(value reflect.Value, texts map[string][]string) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			textsOf(value.Elem(), texts)
		}
	case reflect.Struct:
		for _, field := range value.Fields() {
			textsOf(field, texts)
		}
	case reflect.Slice:
		for i := range value.Len() {
			textsOf(value.Index(i), texts)
		}
	case reflect.String:
		texts[value.Type().String()] = append(texts[value.Type().String()], value.String())
	}
}

// executeMutated executes what the rules accept: prompts in one call and in chunks, decoding, batches, and a prompt
// beside decoding. It may fail with an error. It may not panic, hang, or touch what is not the plan's.
func executeMutated(t *testing.T, base *mutable, plan *planir.Plan) (logits []float32, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if bytes := poolBytes(plan); bytes > 1<<28 {
		return nil, fmt.Errorf("%v bytes of buffers are too many for a test", bytes)
	}
	content := mutatedContent(ctx, t, base, plan)
	defer content.Close()
	options := executor.Options{Drivers: []driver.Driver{host.New()}, Deadline: 3 * time.Second}
	machine, err := executor.Open(ctx, plan, content, options)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := machine.Close(); closed != nil {
			t.Log(closed)
		}
	}()

	keep := func(_ int, row []float32) error {
		logits = append(logits, row...)
		return nil
	}
	err = machine.Do(ctx, func(c *executor.Control) error { return callEverything(machine, c, keep) })
	if broken := ctx.Err(); broken != nil {
		t.Fatalf("executing it takes more than 20 s: %v, %v", broken, err)
	}
	return logits, err
}

// mutatedContent is what a bundle of the plan holds, or of the plan before the change where emit would not write it.
func mutatedContent(ctx context.Context, t *testing.T, base *mutable, plan *planir.Plan) *emit.Content {
	t.Helper()
	compilers := []driver.Compiler{hostcompiler.New()}
	if check.Plan(plan, base.model, nil).Err() == nil {
		content, err := emit.NewCalibrated(ctx, plan, base.model, base.cal, compilers)
		if err == nil {
			return content
		}
	}
	content, err := emit.NewCalibrated(ctx, base.plan, base.model, base.cal, compilers)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// callEverything makes every call that the machine offers.
func callEverything(machine *executor.Machine, c *executor.Control, keep func(int, []float32) error) error {
	ids := make([]int32, 41)
	for i := range ids {
		ids[i] = int32(7 * i % 50)
	}
	for _, n := range []int{1, 5, 33, 1, 1} {
		if _, err := c.Forward(ids[:n], executor.WantAll, keep); err != nil {
			return err
		}
	}

	tokens := []executor.Token{}
	for sequence := 1; sequence < min(4, machine.Sequences()); sequence++ {
		if _, err := c.Extend(sequence, ids[:3*sequence], executor.WantLast, keep); err != nil {
			return err
		}
		tokens = append(tokens, executor.Token{Sequence: sequence, ID: ids[sequence]})
	}
	if len(tokens) < 2 {
		return nil
	}
	if _, err := c.Step(tokens, keep); err != nil {
		return err
	}

	if !machine.Beside() {
		return nil
	}
	c.Truncate(0, 0)
	if _, err := c.Begin(0, ids[:10], true); err != nil {
		return err
	}
	if _, err := c.StepBeside(tokens, keep); err != nil {
		return err
	}
	_, err := c.Await(func(row []float32) error { return keep(0, row) })
	return err
}

// A pack that is too small for the columns of a step is found when the weights are loaded: the rules of plans do not
// know the layouts.
func TestPackIsTooSmall(t *testing.T) {
	for _, base := range mutablePlans(t)[:2] {
		for i := range base.plan.Program.Packs {
			for _, bytes := range []int64{1, base.plan.Program.Packs[i].Bytes / 2} {
				encoded, err := planir.Encode(base.plan)
				if err != nil {
					t.Fatal(err)
				}
				plan, err := planir.Decode(encoded)
				if err != nil {
					t.Fatal(err)
				}
				plan.Program.Packs[i].Bytes = bytes
				if err := planir.Check(plan).Err(); err != nil {
					continue
				}

				_, err = executeMutated(t, &base, plan)

				if diag.ClassOf(err) != diag.ClassRun {
					t.Errorf("%s: pack %q of %d bytes: got %v, want an error of class run", base.name,
						plan.Program.Packs[i].Name, bytes, err)
				}
			}
		}
	}
}

// poolBytes is what the buffers and caches of a plan take, in floating point, because sizes may be anything.
func poolBytes(plan *planir.Plan) float64 {
	total := float64(plan.Program.Cache.Bytes())
	for _, buffer := range plan.Program.Buffers {
		total += 8 * float64(buffer.Rows) * float64(buffer.Cols)
	}
	return total
}

// Plans of every kind of program that are changed at random places, as a signer could, are refused by the rules or
// executed, with an error or without.
func FuzzMutatedPlans(f *testing.F) {
	plans := mutablePlans(f)
	var encoded [][]byte
	var texts []map[string][]string
	for i := range plans {
		bytes, err := planir.Encode(plans[i].plan)
		if err != nil {
			f.Fatal(err)
		}
		encoded = append(encoded, bytes)
		found := map[string][]string{}
		textsOf(reflect.ValueOf(plans[i].plan).Elem(), found)
		texts = append(texts, found)
	}

	seeds := uint64(40)
	if os.Getenv("HETC_LONG") != "" {
		seeds = 20_000
	}
	for seed := range seeds {
		f.Add(seed)
	}

	known := map[string][]float32{}
	computed := func(t *testing.T, of *mutable) []float32 {
		if known[of.name] == nil {
			logits, err := executeMutated(t, of, of.plan)
			if err != nil {
				t.Fatal(err)
			}
			known[of.name] = logits
		}
		return known[of.name]
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 5))
		at := random.IntN(len(plans))
		plan, err := planir.Decode(encoded[at])
		if err != nil {
			t.Fatal(err)
		}

		where := ""
		for tries := 0; tries < 200 && where == ""; tries++ {
			where = mutate(random, reflect.ValueOf(plan).Elem(), texts[at])
		}
		if random.IntN(4) == 0 {
			where += "; " + mutate(random, reflect.ValueOf(plan).Elem(), texts[at])
		}
		again, err := planir.Encode(plan)
		if err != nil {
			return
		}
		if plan, err = planir.Decode(again); err != nil {
			return
		}
		if path := os.Getenv("HETC_MUTATED"); path != "" { // says what was executed when the process ends
			os.WriteFile(path, fmt.Appendf(nil, "%d %s: %s", seed, plans[at].name, where), 0o600)
		}
		if found := planir.Check(plan); found.Err() != nil {
			return
		}

		logits, err := executeMutated(t, &plans[at], plan)

		other := ""
		if want := computed(t, &plans[at]); err == nil && maxDiff(logits, want) != 0 {
			other = "other numbers: "
		}
		t.Logf("%s: %s%s: %v", plans[at].name, other, where, err)
	})
}
