package driver

import "context"

// Surveyor is implemented by drivers of devices that can be described by asking and measuring them, such as GPUs. Other
// devices come with a description.
type Surveyor interface {
	Driver
	// Survey is what the device of a processor tells about itself, before it is opened.
	Survey(ctx context.Context, config Config) (*Survey, error)
}

// Survey describes a device.
type Survey struct {
	Kind        string // cpu, gpu, npu
	Name        string // what it calls itself
	Cores       []int  // CPU cores that a device made of them occupies
	MaxBytes    int64  // largest buffer; 0: it does not tell
	MemoryBytes int64  // all that it addresses; 0: it does not tell
	// Told are further numbers by name: "compute_units".
	Told map[string]float64
	// Parts are devices of fewer cores that options make of it, beside which cores of this CPU compute.
	Parts []Part
	// Completions are sets of options that differ in how the host notices the end of a call, and in nothing else.
	// Probing measures which of them, or none, is met best. They are called by their names in facts.
	Completions map[string]map[string]string
}

// Part is a part of a device.
type Part struct {
	Name    string // for the processor's name: "units-1"
	Options map[string]string
}
