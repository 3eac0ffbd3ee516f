package planir

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// ShareText returns the written form of the shares: "cols npu 0:3072, gpu 3072:5632".
func (d *Decision) ShareText() string {
	var parts []string
	for _, share := range d.Shares {
		part := share.Proc
		if d.Axis != AxisNone {
			part += fmt.Sprintf(" %d:%d", share.From, share.To)
		}
		if share.PadRows > 0 {
			part += fmt.Sprintf(" rows %d", share.PadRows)
		}
		if share.Form != "" {
			part += fmt.Sprintf(" as %s", share.Form)
		}
		parts = append(parts, part)
	}
	text := strings.Join(parts, ", ")
	if d.Axis != AxisNone {
		text = string(d.Axis) + " " + text
	}
	return text
}

// ParseShares reads what ShareText writes, which has no predicted times. Other text is an error of class ClassInput.
func ParseShares(text string) (axis Axis, shares []Share, err error) {
	rest := text
	for _, known := range []Axis{AxisCols, AxisRows, AxisK, AxisHeads} {
		if after, ok := strings.CutPrefix(text, string(known)+" "); ok {
			axis, rest = known, after
		}
	}
	for part := range strings.SplitSeq(rest, ", ") {
		share, err := parseShare(part, axis != AxisNone)
		if err != nil {
			return "", nil, diag.New(diag.ClassInput, "read shares %q: %w", text, err)
		}
		shares = append(shares, share)
	}
	return axis, shares, nil
}

// parseShare reads one share: "npu 0:3072 rows 64 as conv 8x8", without the interval where nothing is divided.
func parseShare(text string, divided bool) (share Share, err error) {
	head, form, _ := strings.Cut(text, " as ")
	share.Form = op.Form(form)
	words := strings.Fields(head)
	if len(words) == 0 {
		return share, errors.New("a share names no processor")
	}
	share.Proc, words = words[0], words[1:]
	if divided {
		if len(words) == 0 {
			return share, fmt.Errorf("%q has no interval", share.Proc)
		}
		from, to, _ := strings.Cut(words[0], ":")
		if share.From, err = strconv.Atoi(from); err != nil {
			return share, err
		}
		if share.To, err = strconv.Atoi(to); err != nil {
			return share, err
		}
		words = words[1:]
	}
	switch {
	case len(words) == 2 && words[0] == "rows":
		share.PadRows, err = strconv.Atoi(words[1])
		return share, err
	case len(words) > 0:
		return share, fmt.Errorf("%q is no part of a share", strings.Join(words, " "))
	}
	return share, nil
}
