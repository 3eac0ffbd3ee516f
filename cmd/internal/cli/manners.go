package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
)

// manners makes every mistake on the command line of root a usage error that says what was probably
// meant. args is the command line.
func manners(root *cobra.Command, args []string) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if found, rest, ferr := root.Find(args); ferr == nil && found.HasSubCommands() {
			known := func(word string) bool {
				return slices.ContainsFunc(found.Commands(), func(c *cobra.Command) bool { return c.Name() == word })
			}
			i := slices.IndexFunc(rest, func(word string) bool { return !strings.HasPrefix(word, "-") })
			if i >= 0 && !known(rest[i]) { // a flag of a command that does not exist
				return unknownCommand(found, rest[i])
			}
		}
		return flagError(cmd, err)
	})
	each(root, func(cmd *cobra.Command) {
		cmd.DisableFlagsInUseLine = true
		if !strings.Contains(cmd.Long, ExitCodes) {
			if cmd.Long == "" {
				cmd.Long = cmd.Short
			}
			cmd.Long += "\n\n" + ExitCodes
		}
		// a group shows its help, and takes no arguments of its own
		check, group := cmd.Args, cmd.HasSubCommands()
		if group && cmd.Run == nil && cmd.RunE == nil {
			cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
		cmd.Args = func(cmd *cobra.Command, rest []string) error {
			if group && len(rest) > 0 {
				return unknownCommand(cmd, rest[0])
			}
			if err := errors.Join(swallowed(cmd), empty(cmd, rest), twice(cmd, args), clobbers(cmd, rest)); err != nil {
				return err
			}
			if check == nil {
				return nil
			}
			return argsError(cmd, rest, check(cmd, rest))
		}
		if cmd.Name() == "help" && cmd.Parent() == root {
			cmd.Args = func(_ *cobra.Command, words []string) error {
				if found, rest, err := root.Find(words); err == nil && len(rest) > 0 {
					return unknownCommand(found, rest[0])
				}
				return nil
			}
		}
	})
}

// each does something with a command and all below it.
func each(c *cobra.Command, do func(*cobra.Command)) {
	do(c)
	for _, sub := range c.Commands() {
		each(sub, do)
	}
}

// unknownCommand names the command that was probably meant.
func unknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	where := ""
	if cmd.HasParent() {
		where = cmd.CommandPath() + ": "
	}
	return diag.New(diag.ClassUsage, "%sunknown command %q", where, word).WithHint("%s", diag.DidYouMean(word, names))
}

// argsError rephrases what cobra's checks of positional arguments say.
func argsError(cmd *cobra.Command, args []string, err error) error {
	var finding *diag.Diagnostic
	if err == nil || errors.As(err, &finding) {
		return err
	}
	if long := oneDash(cmd); long != "" {
		return diag.New(diag.ClassUsage, "%s: unexpected argument %q", cmd.CommandPath(), args[0]).
			WithHint("long flags begin with two dashes: --%s", long)
	}
	var low, high, got int
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "unknown command"): // cobra.NoArgs
		err = fmt.Errorf("unexpected argument %q", args[0])
	case scan(text, "accepts %d arg(s), received %d", &low, &got):
		err = fmt.Errorf("got %d arguments, want %d", got, low)
	case scan(text, "accepts at most %d arg(s), received %d", &high, &got):
		err = fmt.Errorf("got %d arguments, want at most %d", got, high)
	case scan(text, "accepts between %d and %d arg(s), received %d", &low, &high, &got):
		err = fmt.Errorf("got %d arguments, want %d to %d", got, low, high)
	}
	return diag.New(diag.ClassUsage, "%s: %w", cmd.CommandPath(), err).WithHint("usage: %s", cmd.UseLine())
}

// scan reports whether a text has a format, and reads its values.
func scan(text, format string, to ...any) bool {
	n, err := fmt.Sscanf(text, format, to...)
	return err == nil && n == len(to)
}

// oneDash finds a long flag written with one dash, which is read as a short flag and its value:
// -output is -o utput.
func oneDash(c *cobra.Command) (long string) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Shorthand != "" && c.Flags().Lookup(f.Shorthand+f.Value.String()) != nil {
			long = f.Shorthand + f.Value.String()
		}
	})
	return long
}

// swallowed refuses a flag whose value is another flag: --soc --model DIR.
func swallowed(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed || f.Value.Type() != "string" {
			return
		}
		if name, ok := strings.CutPrefix(f.Value.String(), "--"); ok && cmd.Flags().Lookup(name) != nil {
			err = diag.New(diag.ClassUsage, "%s: --%s has no value, --%s follows it", cmd.CommandPath(), f.Name, name).
				WithHint("usage: %s", cmd.UseLine())
		}
	})
	return err
}

// texts are the flags whose text may be empty.
var texts = []string{"prompt", "system"}

// empty refuses a flag or an argument that was given without a text, as a script does where a variable is not set: what
// the flag demands, such as a product or a lowest version, would not be demanded.
func empty(cmd *cobra.Command, args []string) (err error) {
	if at := slices.Index(args, ""); at >= 0 {
		err = diag.New(diag.ClassUsage, "%s: argument %d is empty", cmd.CommandPath(), at+1).
			WithHint("usage: %s", cmd.UseLine())
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		kind, value := f.Value.Type(), f.Value.String()
		if f.Changed && (kind == "string" && value == "" || kind == "stringSlice" && value == "[]") &&
			!slices.Contains(texts, f.Name) {
			err = errors.Join(err, diag.New(diag.ClassUsage, "%s: --%s is empty", cmd.CommandPath(), f.Name).
				WithHint("give it a value, or leave it out; --%s: %s", f.Name, f.Usage))
		}
	})
	return err
}

// twice refuses a flag that was given two values and takes one: the first would be dropped in silence. args is the
// command line.
func twice(cmd *cobra.Command, args []string) (err error) {
	flags := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	flags.AddFlagSet(cmd.Flags())
	given := map[string]string{}
	// parsed before without an error
	_ = flags.ParseAll(args, func(flag *pflag.Flag, value string) error {
		kind := flag.Value.Type()
		list := strings.HasSuffix(kind, "Slice") || strings.HasSuffix(kind, "Array") || kind == "stringToString"
		first, again := given[flag.Name]
		if again && first != value && !list {
			err = errors.Join(err, diag.New(diag.ClassUsage, "%s: --%s is given as %q and as %q", cmd.CommandPath(), flag.Name,
				first, value).WithHint("give it once"))
		}
		given[flag.Name] = value
		return nil
	})
	return err
}

// outputs are the flags that name files to be written.
var outputs = []string{"output", "dump-logits", "markdown", "soc-out", "trace", "write-served", "write-trace"}

// outputsOf returns those of a command. One that can write a trace with --write-trace reads --trace.
func outputsOf(cmd *cobra.Command) []string {
	if cmd.Flags().Lookup("write-trace") == nil {
		return outputs
	}
	return slices.DeleteFunc(slices.Clone(outputs), func(name string) bool { return name == "trace" })
}

// modelFiles are the extensions of the files a model directory is read from.
var modelFiles = []string{".safetensors", ".json", ".gguf"}

// clobbers refuses an output that would replace an input of the same command line: a file that is named
// twice, or one of a model's in a directory that is read.
func clobbers(cmd *cobra.Command, args []string) error {
	outputs := outputsOf(cmd)
	// every flag and argument with a text may be a path that is read
	inputs := map[string]string{} // what it is called -> path
	for i, a := range args {
		inputs[fmt.Sprintf("argument %d", i+1)] = a
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Value.Type() == "string" && !slices.Contains(outputs, f.Name) {
			inputs["--"+f.Name] = f.Value.String()
		}
	})
	written := map[string]string{} // path -> flag
	for _, name := range outputs {
		flag := cmd.Flags().Lookup(name)
		if flag == nil || !flag.Changed {
			continue
		}
		path := flag.Value.String()
		if other, twice := written[filepath.Clean(path)]; twice {
			return diag.New(diag.ClassUsage, "%s: --%s and --%s name one file, %q", cmd.CommandPath(), other, name, path).
				WithHint("give each its own")
		}
		written[filepath.Clean(path)] = name
		out, err := os.Stat(path)
		if err != nil || !out.Mode().IsRegular() {
			continue
		}
		for _, what := range slices.Sorted(maps.Keys(inputs)) {
			in, err := os.Stat(inputs[what])
			if err != nil {
				continue
			}
			// a hard link or another spelling is the same file
			same := os.SameFile(in, out)
			if parent, err := os.Stat(filepath.Dir(path)); err == nil &&
				slices.Contains(modelFiles, filepath.Ext(path)) {
				same = same || os.SameFile(in, parent)
			}
			if same {
				return diag.New(diag.ClassUsage, "%s: --%s %q would replace what %s reads", cmd.CommandPath(), name,
					path, what).
					WithHint("write to another file")
			}
		}
	}
	return nil
}

// flagError returns the error for a command line with a wrong flag.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, err, unknown)
	case errors.As(err, &value):
		flag := value.GetFlag()
		finding := diag.New(diag.ClassUsage, "%s: --%s %q: want %s", cmd.CommandPath(), flag.Name, value.GetValue(),
			wanted(flag.Value.Type()))
		return finding.WithHint("--%s: %s", flag.Name, flag.Usage)
	}
	return diag.New(diag.ClassUsage, "%s: %w", cmd.CommandPath(), err).
		WithHint("%s --help lists the flags", cmd.CommandPath())
}

// wanted describes the values of a flag of a type of pflag.
func wanted(kind string) string {
	switch kind {
	case "int", "int64":
		return "a whole number"
	case "uint", "uint64":
		return "a whole number from 0"
	case "float64":
		return "a number"
	case "intSlice":
		return "whole numbers separated by commas"
	case "float64Slice":
		return "numbers separated by commas"
	case "stringToString":
		return "NAME=VALUE, several separated by commas"
	case "bool":
		return "true or false"
	case "duration":
		return "a time such as 30s or 2m"
	case unit.MomentType:
		return unit.WantMoment
	}
	return kind
}

// unknownFlag names the flag that was probably meant, of this command or of another one.
func unknownFlag(cmd *cobra.Command, err error, unknown *pflag.NotExistError) error {
	finding := diag.New(diag.ClassUsage, "%s: %w", cmd.CommandPath(), err)
	name := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" {
		name = letters
	}
	names := flagNames(cmd)
	if slices.Contains(names, name) {
		return finding.WithHint("long flags begin with two dashes: --%s", name)
	}
	dashed := make([]string, len(names))
	for i := range names {
		dashed[i] = "--" + names[i]
	}
	// a similar flag of this command, else the same flag of another one
	if near := diag.Nearest("--"+name, dashed); near != "" {
		return finding.WithHint("did you mean %s?", near)
	}
	var others []string
	each(cmd.Root(), func(o *cobra.Command) {
		if o != cmd && o.IsAvailableCommand() && slices.Contains(flagNames(o), name) {
			others = append(others, o.CommandPath())
		}
	})
	const most = 4
	if n := len(others); n > 0 && n <= most {
		return finding.WithHint("--%s is a flag of %s", name, strings.Join(others, ", "))
	}
	return finding.WithHint("%s\nusage: %s", diag.DidYouMean("--"+name, dashed), cmd.UseLine())
}

// flagNames returns the long names of the flags a command has of its own, and those of all commands.
func flagNames(cmd *cobra.Command) []string {
	var out []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			out = append(out, f.Name)
		}
	})
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { out = append(out, f.Name) })
	slices.Sort(out)
	return slices.Compact(out) // once parsed, a flag of all commands is among its own
}
