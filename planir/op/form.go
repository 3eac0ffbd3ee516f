package op

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Form is a way to pass a matrix product to a processor: the order of its operands, the operator of a vendor's library,
// or the variant of the driver's kernels. The arithmetic is the same in every form; cost and the compiler's output
// differ (HeteroInfer sec. 3.2, llm.npu sec. 4). The default "" is a fully connected layer, activations first:
// [M,K]x[K,N]. A product of one row has no other forms than its order.
type Form string

// Forms other than the default. What a processor can do is said in classes, which are these words; the form of a
// product in class Conv also says how its rows are laid out, see ConvForm.
const (
	// Swapped multiplies the transposed operands, weight first: [N,K]x[K,M], and transposes the result (HeteroInfer
	// sec. 4.1, [M,N]x[N,K] = ([K,N]x[N,M]) transposed).
	Swapped Form = "swapped"
	// BatchMatMul is a product of two activations, a batch of one: [1,M,K]x[1,K,N].
	BatchMatMul Form = "bmm"
	// Conv is a convolution with a kernel of 1x1: K channels to N, over an image of W x H = M pixels (llm.npu sec. 4).
	Conv Form = "conv"
)

// FormClasses lists the classes that every driver may have, in a fixed order. The variants of a driver's kernels are
// further classes, one each (KernelForm).
var FormClasses = []Form{Swapped, BatchMatMul, Conv}

// kernelPrefix begins the forms that name a variant of a driver's kernels.
const kernelPrefix = "kernel "

// maxKernel bounds the name of a variant.
const maxKernel = 48

// KernelForm returns the form of a product by a named variant of the driver's kernels: "kernel tiles". The driver
// decides which variants exist, and what each needs of a device.
func KernelForm(variant string) Form { return Form(kernelPrefix + variant) }

// Kernel returns the variant that the form names, "" for other forms and for what is no name: words of small letters
// and digits with hyphens in between.
func (f Form) Kernel() string {
	variant, named := strings.CutPrefix(string(f), kernelPrefix)
	if !named || variant == "" || len(variant) > maxKernel {
		return ""
	}
	between := true // words: no name begins or ends with a hyphen, or has two of them in a row
	for _, letter := range []byte(variant) {
		hyphen := letter == '-'
		if hyphen && between || !hyphen && !('a' <= letter && letter <= 'z' || '0' <= letter && letter <= '9') {
			return ""
		}
		between = hyphen
	}
	if between {
		return ""
	}
	return variant
}

// IsClass reports whether the form is a class: one of FormClasses, or a variant of kernels.
func (f Form) IsClass() bool { return slices.Contains(FormClasses, f) || f.Kernel() != "" }

// ConvForm returns the convolution over an image of w*h pixels: "conv 32x8" for w = 32 and h = 8. The rows of the
// product are its pixels, w after w.
func ConvForm(w, h int) Form { return Form(fmt.Sprintf("%s %dx%d", Conv, w, h)) }

// Class returns the form without the layout of its rows, "" for the default.
func (f Form) Class() Form {
	if class, _, ok := strings.Cut(string(f), " "); ok && f.Kernel() == "" {
		return Form(class)
	}
	return f
}

// Image returns the width and height of a convolution's image; ok is false for other forms and unless both are numbers
// of at least 1 in their shortest writing.
func (f Form) Image() (width, height int, ok bool) {
	size, conv := strings.CutPrefix(string(f), string(Conv)+" ")
	across, down, two := strings.Cut(size, "x")
	if !conv || !two {
		return 0, 0, false
	}
	width, height = parseSide(across), parseSide(down)
	if width == 0 || height == 0 {
		return 0, 0, false
	}
	return width, height, true
}

// parseSide reads a number of pixels in its shortest writing, and is 0 for anything else. It formats nothing: pricing
// asks for the image of every form that was measured, for every operator.
func parseSide(text string) int {
	if text == "" || text[0] < '1' || text[0] > '9' { // Atoi also takes signs and leading zeros
		return 0
	}
	number, err := strconv.Atoi(text)
	if err != nil || number > maxDim {
		return 0
	}
	return number
}

// FormsOf lists the forms of a product of so many rows in the given classes: of Conv every factorisation of these into
// width and height (llm.npu sec. 4), none of a single row. The order is that of FormClasses, widths ascending; variants
// of kernels follow as they are listed.
func FormsOf(rows int, classes []Form) []Form {
	var out []Form
	for _, class := range FormClasses {
		switch {
		case !slices.Contains(classes, class):
		case class != Conv:
			out = append(out, class)
		case rows > 1:
			var wide []Form
			for height := 1; height*height <= rows; height++ { // the longer side first: its list is descending
				if rows%height == 0 {
					out = append(out, ConvForm(height, rows/height))
					if height*height < rows {
						wide = append(wide, ConvForm(rows/height, height))
					}
				}
			}
			slices.Reverse(wide)
			out = append(out, wide...)
		}
	}
	for _, class := range classes {
		if class.Kernel() != "" {
			out = append(out, class)
		}
	}
	return out
}

// Squarest returns the factorisation of rows into width and height whose sides differ least, the wider first.
func Squarest(rows int) Form {
	height := 1
	for divisor := 2; divisor*divisor <= rows; divisor++ {
		if rows%divisor == 0 {
			height = divisor
		}
	}
	return ConvForm(rows/height, height)
}

// check reports a form that is none, or whose image has another number of pixels than the product rows.
func (f Form) check(rows int) error {
	switch {
	case f == "" || f == Swapped || f == BatchMatMul || f.Kernel() != "":
		return nil
	case f.Class() == Conv:
		width, height, ok := f.Image()
		if !ok {
			return fmt.Errorf("form %q, want a convolution as %q", string(f), ConvForm(16, 8))
		}
		if width*height != rows {
			return fmt.Errorf("form %q: an image of %d pixels, want the product's %d rows", string(f), width*height,
				rows)
		}
		return nil
	}
	return fmt.Errorf("form %q, want %q, %q, a convolution as %q or a variant of kernels as %q", string(f), Swapped,
		BatchMatMul, ConvForm(16, 8), KernelForm("tiles"))
}
