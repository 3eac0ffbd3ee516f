package clapi

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

// imitation is a library with three platforms: the first has two devices, the second does not list its own, and the
// third has one device of which the name cannot be read while nameless is set.
type imitation struct{ nameless, unnamed bool }

// Objects of an imitation.
const (
	platformWhole = iota + 1
	platformBroken
	platformLast
	deviceFirst
	deviceSecond
	deviceLast
)

// pointer is memory of the caller's at an address, nil for 0.
func pointer[T any](address uintptr) *T {
	return *(**T)(unsafe.Pointer(&address)) // SAFETY: the caller of the function waits, and its memory with it
}

// listed answers a question for objects: how many there are, or which.
func listed(ids []uintptr, room, to, count uintptr) uintptr {
	if at := pointer[uint32](count); at != nil {
		*at = uint32(len(ids))
	}
	if at := pointer[uintptr](to); at != nil {
		copy(unsafe.Slice(at, int(room)), ids)
	}
	return 0
}

// told answers a question for a text: how long it is, or what it is.
func told(text string, to, size uintptr) uintptr {
	if at := pointer[uintptr](size); at != nil {
		*at = uintptr(len(text) + 1)
	}
	if at := pointer[byte](to); at != nil {
		copy(unsafe.Slice(at, len(text)+1), text+"\x00")
	}
	return 0
}

// errorCode is an error code as C returns it.
func errorCode(number int32) uintptr { return uintptr(uint32(number)) }

// library is the imitation as a library.
func (i *imitation) library() *Library {
	lib := &Library{Path: "imitation"}
	lib.fn[fnGetPlatformIDs] = native.Callback(func(room, to, count uintptr) uintptr {
		return listed([]uintptr{platformWhole, platformBroken, platformLast}, room, to, count)
	})
	lib.fn[fnGetPlatformInfo] = native.Callback(func(platform, _, _, to, size uintptr) uintptr {
		if platform == platformLast && i.unnamed {
			return errorCode(-32)
		}
		return told([]string{"whole", "broken", "last"}[platform-platformWhole], to, size)
	})
	lib.fn[fnGetDeviceIDs] = native.Callback(func(platform, _, room, to, count uintptr) uintptr {
		switch platform {
		case platformBroken:
			return errorCode(-6)
		case platformLast:
			return listed([]uintptr{deviceLast}, room, to, count)
		}
		return listed([]uintptr{deviceFirst, deviceSecond}, room, to, count)
	})
	lib.fn[fnGetDeviceInfo] = native.Callback(func(device, _, _, to, size uintptr) uintptr {
		if device == deviceLast && i.nameless {
			return errorCode(-5)
		}
		return told([]string{"one", "two", "three"}[device-deviceFirst], to, size)
	})
	return lib
}

// A platform that does not list its devices, or whose device does not tell its name, has its error, and other platforms
// have their devices.
func TestOnePlatformFails(t *testing.T) {
	if native.Supported() != nil {
		t.Skip("this build calls no C functions")
	}
	imitated := &imitation{}
	lib := imitated.library()
	for _, c := range []struct {
		imitation
		last string // the error of the last platform
	}{
		{imitation{}, ""},
		{imitation{nameless: true}, "describe device: OUT_OF_RESOURCES (-5)"},
		{imitation{unnamed: true}, "describe platform: INVALID_PLATFORM (-32)"},
	} {
		*imitated = c.imitation
		platforms, err := lib.Platforms()
		if err != nil || len(platforms) != 3 {
			t.Fatalf("%+v: %d platforms, %v", c, len(platforms), err)
		}
		whole, broken, last := platforms[0], platforms[1], platforms[2]
		if whole.Err != nil || whole.Name != "whole" || len(whole.Devices) != 2 || whole.Devices[1].Name != "two" {
			t.Errorf("%+v: the whole platform is %+v", c, whole)
		}
		if broken.Name != "broken" || len(broken.Devices) > 0 || diag.ClassOf(broken.Err) != diag.ClassRun ||
			!strings.Contains(broken.Err.Error(), "count devices: OUT_OF_HOST_MEMORY (-6)") {
			t.Errorf("%+v: the broken platform is %+v", c, broken)
		}
		switch {
		case c.last == "" && (last.Err != nil || len(last.Devices) != 1):
			t.Errorf("%+v: the last platform is %+v", c, last)
		case c.last != "" && (last.Err == nil || !strings.Contains(last.Err.Error(), c.last) || len(last.Devices) > 0):
			t.Errorf("%+v: the last platform is %+v, want the error %q", c, last, c.last)
		}
	}
}
