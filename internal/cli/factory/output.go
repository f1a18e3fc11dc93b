package factory

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// resultFlag is the annotation of an --output flag whose value is a format. That of other commands names a file.
const resultFlag = "pinniped_result_format"

// AddOutput adds --output, which chooses the format of the result. The first format is the default.
func AddOutput(cmd *cobra.Command, output *string, formats ...string) {
	last := len(formats) - 1
	usage := "output format: " + strings.Join(formats[:last], ", ") + " or " + formats[last]
	if slices.Contains(formats, "table") {
		usage += " (text and table are the same)"
	}
	AddOutputWithUsage(cmd, output, formats[0], usage, formats...)
}

// AddOutputWithUsage is AddOutput, with a default and a usage of the caller's.
func AddOutputWithUsage(cmd *cobra.Command, output *string, value, usage string, formats ...string) {
	cmd.Flags().StringVarP(output, "output", "o", value, usage)
	cmd.Flags().Lookup("output").Annotations = map[string][]string{resultFlag: {"true"}}
	CompleteFlags(cmd, map[string]cobra.CompletionFunc{"output": CompleteValues(formats...)})
}

// OutputOf returns the format of the result that a command line asks for, also when the command line cannot be parsed
// as a whole. It is empty when the command line asks for none, and for a command without AddOutput.
func OutputOf(cmd *cobra.Command, args []string) string {
	flag := cmd.Flags().Lookup("output")
	if flag == nil || flag.Annotations[resultFlag] == nil {
		return ""
	}
	if flag.Changed {
		return flag.Value.String()
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	format := flags.StringP("output", "o", "", "")
	_ = flags.Parse(args) // the command itself says what is wrong
	return *format
}
