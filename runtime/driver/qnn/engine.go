package qnn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/runtime/driver"
)

// versions are the versions of the libraries of an engine.
type versions struct {
	ORT, ORTPath string
	QNN          ortapi.QNN
	Backend      ortapi.QNNBackend
}

// String returns what hetc drivers shows as the build.
func (v versions) String() string {
	return fmt.Sprintf("ONNX Runtime %s, QNN core interface %v, HTP interface %v", v.ORT, v.Backend.Core, v.Backend.API)
}

// program is what an engine loads: the bytes of a model, or the file of one that refers to another
// file beside it.
type program struct {
	Code    []byte
	File    string
	In, Out []onnx.Value
}

// engine loads and runs programs, by libraries in this process (local) or in another process
// (remote).
type engine interface {
	about() versions
	// compatible asks the libraries whether they can load what has this compatibility string.
	compatible(token string) (ortapi.Compatibility, error)
	load(ctx context.Context, p program) (id int, err error)
	// run executes the program on the values of its inputs and writes those of its outputs, dense both.
	run(id int, in, out [][]byte) error
	unload(id int) error
	close() error
}

// local is the libraries in this process.
type local struct {
	v      versions
	env    *ortapi.Env
	device ortapi.Device
	// by id, of which next is the one to be given away
	sessions map[int]*session
	next     int
}

// session is a loaded program with memory for its operands.
type session struct {
	s *ortapi.Session
	b *ortapi.Binding
	// operands in memory that the library shares, which the binding refers to
	in, out []*mem.Region
	values  []*ortapi.Value
}

// openLocal loads the libraries. ort is ONNX Runtime's path, empty where it is to be looked for.
func openLocal(ort string, libs ortapi.QNN) (e *local, err error) {
	lib, err := ortapi.Find(ort)
	if err != nil {
		return nil, err
	}
	opened := &local{v: versions{ORT: lib.Version, ORTPath: lib.Path, QNN: libs}, sessions: map[int]*session{}}
	if opened.env, err = lib.NewEnv(ortapi.EnvOptions{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.env.Close())
		}
	}()
	if err := opened.env.RegisterProvider(ortapi.QNNProvider, libs.Provider); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "library %q with ONNX Runtime %s: %w", libs.Provider, lib.Version,
			err)
	}
	devices, err := opened.env.Devices()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(devices, func(d ortapi.Device) bool { return d.Provider == ortapi.QNNProvider })
	if i < 0 {
		return nil, diag.New(diag.ClassUnavailable, "library %q offers no device on this machine", libs.Provider)
	}
	opened.device = devices[i]
	if opened.v.Backend, err = libs.Version(); err != nil {
		return nil, err
	}
	return opened, nil
}

// about is known since the libraries were opened.
func (l *local) about() versions { return l.v }

// compatible asks the device of this process.
func (l *local) compatible(token string) (ortapi.Compatibility, error) {
	return l.device.Compatibility(token)
}

// load makes a session, refuses one that the NPU would not compute whole, and binds memory for every operand. After an
// error nothing stays loaded.
func (l *local) load(_ context.Context, wanted program) (id int, err error) {
	options := &ortapi.SessionOptions{Devices: []ortapi.Device{l.device},
		ProviderOptions: [][2]string{{"backend_path", l.v.QNN.Backend}}}
	loaded := &session{}
	if wanted.File == "" {
		loaded.s, err = l.env.NewSession(wanted.Code, options)
	} else {
		// Programs of one binary load it once.
		options.Config = [][2]string{{"ep.share_ep_contexts", "1"}}
		loaded.s, err = l.env.NewSessionFromFile(wanted.File, options)
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, loaded.close())
		}
	}()
	if err := placed(loaded.s); err != nil {
		return 0, err
	}
	if loaded.b, err = loaded.s.NewBinding(); err != nil {
		return 0, err
	}
	if err := l.bind(loaded, inputs(wanted, loaded)); err != nil {
		return 0, err
	}
	if err := l.bind(loaded, outputs(wanted, loaded)); err != nil {
		return 0, err
	}
	l.next++
	l.sessions[l.next] = loaded
	return l.next, nil
}

// operandSide is the operands of a program on one side, inputs or outputs: as the program has them and as the library sees them.
type operandSide struct {
	want    []onnx.Value
	got     []ortapi.IO
	regions *[]*mem.Region
	bind    func(string, *ortapi.Value) error
}

// inputs and outputs are the sides of a program and its session.
func inputs(wanted program, loaded *session) operandSide {
	return operandSide{wanted.In, loaded.s.Inputs, &loaded.in, loaded.b.BindInput}
}

func outputs(wanted program, loaded *session) operandSide {
	return operandSide{wanted.Out, loaded.s.Outputs, &loaded.out, loaded.b.BindOutput}
}

// bind gives each operand of a side memory and a tensor of its own, and refuses operands that are not the program's.
func (l *local) bind(loaded *session, operands operandSide) error {
	if len(operands.got) != len(operands.want) {
		return diag.New(diag.ClassRun, "the library sees %d operands, want %d", len(operands.got), len(operands.want))
	}
	for i, value := range operands.want {
		element := ortapi.ElementType(value.Type)
		if got := operands.got[i]; got.Name != value.Name || got.Type != element || !slices.Equal(got.Shape, value.Dims) {
			return diag.New(diag.ClassRun,
				"the library takes operand %d as %q of type %v %v, want %q of type %v %v", i, got.Name, got.Type,
				got.Shape, value.Name, element, value.Dims)
		}
		bytes := element.Bytes()
		for _, dim := range value.Dims {
			bytes *= dim // of a parsed model and a valid graph: no overflow
		}
		region, err := mem.Alloc(int(bytes), driver.Align)
		if err != nil {
			return err
		}
		*operands.regions = append(*operands.regions, region)
		tensor, err := l.env.NewTensor(region.Bytes(), element, value.Dims)
		if err != nil {
			return err
		}
		loaded.values = append(loaded.values, tensor)
		if err := operands.bind(value.Name, tensor); err != nil {
			return err
		}
	}
	return nil
}

// placed refuses a session in which the provider did not take the compiled graph, or in which the
// CPU computes more than conversions. The library would compute there without a word.
func placed(s *ortapi.Session) error {
	list, err := s.Placement()
	if err != nil {
		return err
	}
	compiled := 0
	for _, placement := range list {
		for _, node := range placement.Nodes {
			switch {
			case node.Op == "EPContext" && placement.Provider == ortapi.QNNProvider:
				compiled++
			case node.Op == "EPContext" || placement.Provider != ortapi.QNNProvider && !edges[node.Op]:
				return diag.New(diag.ClassRun,
					"%s would run on %s: want the compiled graph on %s, and nothing but conversions elsewhere",
					node.Op, placement.Provider, ortapi.QNNProvider)
			}
		}
	}
	if compiled != 1 {
		return diag.New(diag.ClassRun, "%s took %d compiled graphs, want one", ortapi.QNNProvider, compiled)
	}
	return nil
}

// run copies the inputs in and the outputs out, since the session is bound to its own memory.
func (l *local) run(id int, in, out [][]byte) error {
	session := l.sessions[id]
	if session == nil || len(in) != len(session.in) || len(out) != len(session.out) {
		return errors.New("no such program, or other operands than its own")
	}
	for i, region := range session.in {
		if len(in[i]) != len(region.Bytes()) {
			return fmt.Errorf("input %d has %d bytes, want %d", i, len(in[i]), len(region.Bytes()))
		}
		copy(region.Bytes(), in[i])
	}
	if err := session.s.Run(session.b); err != nil {
		return err
	}
	for i, region := range session.out {
		if len(out[i]) != len(region.Bytes()) {
			return fmt.Errorf("output %d has %d bytes, want %d", i, len(out[i]), len(region.Bytes()))
		}
		copy(out[i], region.Bytes())
	}
	return nil
}

// unload closes a session; an id that is not loaded is no error.
func (l *local) unload(id int) error {
	session := l.sessions[id]
	if session == nil {
		return nil
	}
	delete(l.sessions, id)
	return session.close()
}

// close releases the session before the tensors and the memory that it is bound to.
func (s *session) close() error {
	err := s.s.Close() // and its binding
	for _, value := range s.values {
		err = errors.Join(err, value.Close())
	}
	for _, region := range slices.Concat(s.in, s.out) {
		err = errors.Join(err, region.Close())
	}
	return err
}

// close unloads every program and the libraries' environment.
func (l *local) close() error {
	var err error
	for id := range l.sessions {
		err = errors.Join(err, l.unload(id))
	}
	return errors.Join(err, l.env.Close())
}
