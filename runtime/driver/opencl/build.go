package opencl

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// builder turns one node into steps.
type builder struct {
	e       *executable
	op      op.Op
	node    int
	in, out []int // operands
	w       []weight
}

// build checks the weights of a node and appends its steps.
func (b *builder) build() error {
	operator := &b.op
	plain := *operator
	plain.Form = "" // the arithmetic is the same in every form
	if err := b.e.p.caps.Supports(plain); err != nil {
		return err
	}

	for i, role := range operator.Sig().W {
		spec, want := b.w[i], operator.WeightSpec(role, layouts[operator.Scheme.Weight()])
		want.Name = spec.Spec.Name
		if spec.Spec != want {
			return fmt.Errorf("weight %d is %v, want %v", i, spec.Spec, want)
		}
	}
	if err := b.e.Join(&b.op); err != nil {
		return err
	}
	of := builders[operator.Kind]
	if of == nil {
		return fmt.Errorf("operator %q is not supported", operator.Kind)
	}
	return of(b)
}

// Arguments of kernels.
func (b *builder) value(operand int) argument {
	return argument{kind: argOperand, operand: operand, ld: -1}
}
func matrix(w weight) argument                       { return argument{kind: argBuffer, buffer: w.device} }
func number(value int) argument                      { return argument{kind: argWord, value: int64(value)} }
func dynamic(kind argumentKind) argument             { return argument{kind: kind} }
func side(which int) argument                        { return argument{kind: argSide, operand: which} }
func (b *builder) note(step *step) (list []argument) { return b.notes(step, true) }
func float(value float64) argument {
	return argument{kind: argWord, value: int64(math.Float32bits(float32(value)))}
}

// notes returns the buffer of notes and, for a step that refuses rows, its word in them.
func (b *builder) notes(s *step, refuses bool) []argument {
	at := argument{kind: argWord}
	if refuses {
		at = argument{kind: argNote, offset: int64(b.e.refusals)}
		b.e.refusals++
		b.e.refusing = append(b.e.refusing, len(b.e.steps))
	}
	return []argument{dynamic(argNotes), at}
}

// step begins a step of the node.
func (b *builder) step() *step {
	return &step{node: b.node, m: b.op.M, fan: max(1, b.op.Fan)}
}

// add appends a step.
func (b *builder) add(s *step) { b.e.steps = append(b.e.steps, *s) }

// addLaunch appends a step of a single launch.
func (b *builder) addLaunch(s *step, family, function string, columns int, args ...argument) error {
	if err := b.launch(s, family, function, columns, args...); err != nil {
		return err
	}
	b.add(s)
	return nil
}

// launch builds the function of a family's program and appends its launch to a step.
func (b *builder) launch(s *step, family, function string, columns int, args ...argument) error {
	variant, err := b.e.choose(family, "")
	if err != nil {
		return err
	}
	return b.launchVariant(s, family, variant, variant.Rows, function, columns, args)
}

// choose returns the variant of a family that the form of a node names, that the options name, or that suits the
// device.
func (e *executable) choose(family, named string) (kernel.Variant, error) {
	return choose(e.code.Code, kernel.Use{Family: family, Variant: named}, e.p.settings, &e.p.device.features)
}

// choose returns the variant that an artifact has for a use, on a device with these options.
func choose(code *kernel.Code, use kernel.Use, settings settings, features *kernel.Features) (kernel.Variant, error) {
	family := use.Family
	if use.Variant != "" {
		return named(code, use, features)
	}
	variant, err := code.Choose(family, features)
	if err != nil {
		return variant, err
	}
	if want := settings.variants[kernel.Base(family)]; want != "" && want != variant.Name {
		wanted, _ := kernel.Find(family, want)
		if code.Find(family, want, wanted.Rows) == "" {
			return variant, fmt.Errorf("kernels %q: the artifact does not carry variant %q, which the option names",
				family, want)
		}
		return wanted, nil
	}
	return variant, nil
}

// named returns the variant that the form of a node names, which the artifact must carry and the device be able to
// execute.
func named(code *kernel.Code, use kernel.Use, features *kernel.Features) (kernel.Variant, error) {
	variant, known := kernel.Find(use.Family, use.Variant)
	if !known {
		return variant, diag.New(diag.ClassInput, "kernels %q have no variant %q, which the product's form names",
			use.Family, use.Variant).WithHint("variants: %s", kernel.VariantNames(use.Family))
	}
	if lacks := variant.Lacks(features); lacks != "" {
		_, can := kernel.First(use.Family, features)
		return variant, diag.New(diag.ClassUnavailable,
			"variant %q of kernels %q, which the product's form names, needs %s, "+
				"which the device lacks", use.Variant, use.Family, lacks).
			WithHint("solve again with a record of this device; it executes %s", strings.Join(can, ", "))
	}
	if code.Find(use.Family, use.Variant, variant.Rows) == "" {
		return variant, diag.New(diag.ClassInput,
			"kernels %q: the artifact does not carry variant %q, which the product's "+
				"form names", use.Family, use.Variant).WithHint("emit the bundle again")
	}
	return variant, nil
}

// launchVariant appends the launch of a variant with items that compute so many rows.
func (b *builder) launchVariant(s *step, family string, variant kernel.Variant, rows int, function string, columns int,
	args []argument) error {
	source := b.e.code.Find(family, variant.Name, rows)
	if source == "" {
		return fmt.Errorf("kernels %q: the artifact has no source of variant %q for %d rows", family, variant.Name,
			rows)
	}
	program, err := b.e.p.program(source)
	if err != nil {
		return fmt.Errorf("kernels %q, variant %q: %w", family, variant.Name, err)
	}
	made, err := program.Kernel(function)
	if err != nil {
		return fmt.Errorf("kernels %q, variant %q: %w", family, variant.Name, err)
	}
	if err := fits(made, &variant, args); err != nil {
		return errors.Join(fmt.Errorf("kernels %q, variant %q: function %q %w", family, variant.Name, function, err),
			made.Close())
	}

	// The first execution sets all arguments, also constant numbers and weights.
	s.launches = append(s.launches, launch{kernel: made, variant: variant, columns: columns,
		last: variant.Few > 0 && rows < variant.Rows, args: slices.Clone(args)})
	return nil
}

// fits refuses a kernel with another number of arguments than its launch has, or one that the device cannot execute in
// groups of the launch's size, which depends on the registers and memory of each item. So a source or a binary of
// another version is refused before it is executed; the self-test finds one with the same number of other arguments.
// RATIONALE: What keeps a damaged program from a GPU?
func fits(made *clapi.Kernel, variant *kernel.Variant, args []argument) error {
	have, err := made.Arguments()
	if err != nil {
		return err
	}
	want := 0
	for i := range args {
		switch args[i].kind {
		case argOperand: // buffer, place and row pitch
			want += 3
		case argSide, argScratch: // buffer and place
			want += 2
		default:
			want++
		}
	}
	if have != want {
		return diag.New(diag.ClassInput, "takes %d arguments, want %d: it is not the kernel that this program calls",
			have, want).WithHint("emit the bundle again")
	}
	largest, err := made.WorkGroup()
	if err != nil {
		return err
	}
	if size := variant.GroupSize(); largest < size {
		return diag.New(diag.ClassUnavailable,
			"needs groups of %d items, and the device executes it in groups of at most %d", size, largest).
			WithHint("name another variant by the option %q, or profile the device and solve again", VariantOption)
	}
	return nil
}
