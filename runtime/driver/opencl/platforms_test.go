package opencl

import (
	"errors"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
)

// A platform that fails is skipped with its reason and keeps its number: what selects a device of another platform
// selects it as before, and a plan for a device of the one that fails is not carried out on another one's.
func TestPlatformThatFails(t *testing.T) {
	device := func(names ...string) (list []*clapi.Device) {
		for _, name := range names {
			list = append(list, &clapi.Device{Name: name})
		}
		return list
	}
	broken := &clapi.Error{What: "count devices", Code: -6}
	platforms := []*clapi.Platform{
		{Err: errors.New("it does not tell its name")},
		{Name: "third", Devices: device("x", "y")},
		{Name: "empty"},
		{Name: "second", Devices: device("z")},
		{Name: "first", Err: broken},
	}
	for i := range platforms[1].Devices {
		platforms[1].Devices[i].Platform = platforms[1]
	}
	list := arrange(platforms)
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
	for selector, want := range map[string]string{"": "z", "1.0": "z", "2.1": "y", "y": "y"} {
		if found, err := list.find(selector); err != nil || found.Name != want {
			t.Errorf("selector %q: %+v, %v, want %q", selector, found, err, want)
		}
	}
	_, err := list.find("0.0")
	says(t, err, `platform 0, "first"`, "count devices: OUT_OF_HOST_MEMORY (-6)")
	if diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("%v is of class %v, want %v", err, diag.ClassOf(err), diag.ClassUnavailable)
	}
	_, err = list.find("4.0")
	says(t, err, "there is no such device")
	says(t, errors.New(list.names()), `1.0 "z"`, `skipped platform 0, "first"`)
}
