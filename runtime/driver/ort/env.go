package ort

import (
	"bytes"
	"errors"
	"sync"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/runtime/driver"
)

// env is a library's environment, which all processors of this process share. The last one to close
// releases it.
type env struct {
	*ortapi.Env
	lib       *ortapi.Library
	prepacked *ortapi.PrepackedWeights // equal weights of several graphs are kept once, in the library's layout
	used      int
}

// envs are the open environments, by their library.
var envs struct {
	sync.Mutex
	of map[*ortapi.Library]*env
}

// environment opens or shares a library's environment. Its thread pool covers every core that the
// process may use, and processors of all cores share it, so that hundreds of graphs do not bring a
// pool each.
func environment(lib *ortapi.Library) (*env, error) {
	envs.Lock()
	defer envs.Unlock()
	if environment := envs.of[lib]; environment != nil {
		environment.used++
		return environment, nil
	}
	cores := affinity.Cores()
	inner, err := lib.NewEnv(ortapi.EnvOptions{Threads: len(cores), Cores: cores[1:]})
	if err != nil {
		return nil, err
	}
	environment := &env{Env: inner, lib: lib, used: 1}
	if err := exact(environment); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	if environment.prepacked, err = inner.NewPrepackedWeights(); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	if envs.of == nil {
		envs.of = map[*ortapi.Library]*env{}
	}
	envs.of[lib] = environment
	return environment, nil
}

// release gives back one use of the environment.
func (e *env) release() error {
	envs.Lock()
	defer envs.Unlock()
	if e.used--; e.used > 0 {
		return nil
	}
	delete(envs.of, e.lib)
	return errors.Join(e.prepacked.Close(), e.Close())
}

// exact multiplies the largest 8-bit numbers and refuses a library that gets them wrong. Without
// the instructions for such products, some kernels keep their sums in 16 bits, which saturate.
// RATIONALE: Why does the driver multiply 255 by 127 when it starts?
func exact(environment *env) error {
	const k, n = 64, 16
	model := onnx.Model{IR: onnx.IR, Producer: "hetc", Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset}},
		Graph: onnx.Graph{
			Name: "exact", Inputs: []onnx.Value{{Name: "a", Type: onnx.Uint8, Dims: []int64{1, k}}},
			Outputs: []onnx.Value{{Name: "y", Type: onnx.Int32, Dims: []int64{1, n}}},
			Initializers: []onnx.Tensor{{Name: "b", Type: onnx.Int8, Dims: []int64{k, n},
				Raw: bytes.Repeat([]byte{127}, k*n)}},
			Nodes: []onnx.Node{{Name: "n0", Op: "MatMulInteger", In: []string{"a", "b"}, Out: []string{"y"}}},
		}}
	memory, err := mem.Alloc(k+4*n, driver.Align)
	if err != nil {
		return err
	}
	defer memory.Close()
	// k activations of 8 bits, then n results of 32 bits.
	left, result := memory.Bytes()[:k], memory.Bytes()[k:]
	for i := range left {
		left[i] = 255
	}
	session, err := environment.NewSession(model.Marshal(), &ortapi.SessionOptions{Threads: 1})
	if err != nil {
		return err
	}
	defer session.Close()
	binding, err := session.NewBinding()
	if err != nil {
		return err
	}
	in, err := environment.NewTensor(left, ortapi.ElementType(onnx.Uint8), []int64{1, k})
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := environment.NewTensor(result, ortapi.ElementType(onnx.Int32), []int64{1, n})
	if err != nil {
		return err
	}
	defer out.Close()
	if err := errors.Join(binding.BindInput("a", in), binding.BindOutput("y", out)); err != nil {
		return err
	}
	if err := session.Run(binding); err != nil {
		return err
	}
	got, err := mem.View[int32](result)
	if err != nil {
		return err
	}
	if want := int32(255 * 127 * k); got[0] != want {
		return diag.New(diag.ClassUnavailable, "library %q (version %s) multiplies 8-bit numbers inexactly on this CPU: got %d for %d products of 255 and 127, want %d: %w", environment.lib.Path, environment.lib.Version, got[0], k, want, driver.ErrIncapable).
			WithHint("a CPU with VNNI is needed, or the driver host")
	}
	return nil
}
