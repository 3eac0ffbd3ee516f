package opencl

import (
	"errors"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
)

// arranged are platforms in the order in which the loader gives them. Two of them fail.
func arranged() *listing {
	named := func(names ...string) (devices []*clapi.Device) {
		for _, name := range names {
			devices = append(devices, &clapi.Device{Name: name})
		}
		return devices
	}
	platforms := []*clapi.Platform{
		{Err: errors.New("it does not tell its name")},
		{Name: "third", Devices: named("x", "y")},
		{Name: "empty"},
		{Name: "second", Devices: named("z")},
		{Name: "first", Err: &clapi.Error{What: "count devices", Code: -6}},
	}
	for _, platform := range platforms {
		for _, device := range platform.Devices {
			device.Platform = platform
		}
	}
	return arrange(platforms)
}

// A platform that fails is skipped with its reason and keeps its number, so that a selector selects the same device of
// another platform as before.
func TestPlatformThatFails(t *testing.T) {
	list := arranged()
	var got []string
	for _, found := range list.devices {
		got = append(got, found.selector+" "+found.Name)
	}

	// "first" is 0; "empty" has no number.
	if want := []string{"1.0 z", "2.0 x", "2.1 y"}; !slices.Equal(got, want) {
		t.Errorf("devices %q, want %q", got, want)
	}
	if len(list.skipped) != 2 || list.skipped[1].String() != "platform 3, without a name: it does not tell its name" {
		t.Errorf("skipped %v", list.skipped)
	}
	says(t, errors.New(list.names()), `1.0 "z"`, `skipped platform 0, "first"`)
}

// A selector finds a device by its numbers or its name. It finds none on a platform that fails, and the error says why.
func TestFindDevice(t *testing.T) {
	list := arranged()
	for selector, want := range map[string]string{"": "z", "1.0": "z", "2.1": "y", "y": "y"} {
		if found, err := list.find(selector); err != nil || found.Name != want {
			t.Errorf("selector %q: %+v, %v, want %q", selector, found, err, want)
		}
	}

	_, err := list.find("0.0")
	says(t, err, `platform 0, "first"`, "count devices: OUT_OF_HOST_MEMORY (-6)")
	if class := diag.ClassOf(err); class != diag.ClassUnavailable {
		t.Errorf("%v is of class %v, want %v", err, class, diag.ClassUnavailable)
	}
	_, err = list.find("4.0")
	says(t, err, "there is no such device")
}
