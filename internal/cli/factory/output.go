package factory

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// resultFlag is the annotation of an --output flag whose value is a format, or may be one.
const resultFlag = "pinniped_result_format"

// textFormat is the result for people, the default of every command that has such a result, and tableFormat is another
// name for it.
const (
	textFormat  = "text"
	tableFormat = "table"
)

// Formats returns the values of --output: those that nearly all commands have, and others.
func Formats(others ...string) []string {
	return append([]string{textFormat, "json", "yaml"}, others...)
}

// AddOutput adds --output, which chooses the format of the result. The first format is the default.
func AddOutput(cmd *cobra.Command, output *string, formats ...string) {
	last := len(formats) - 1
	usage := "output format: " + strings.Join(formats[:last], ", ") + " or " + formats[last]
	if formats[0] == textFormat {
		usage += " (table is the same as text)"
	}
	cmd.Flags().StringVarP(output, "output", "o", formats[0], usage)
	cmd.Flags().Lookup("output").Annotations = map[string][]string{resultFlag: {"true"}}
	CompleteFlags(cmd, map[string]cobra.CompletionFunc{"output": CompleteValues(formats...)})
}

// AddFileOutput adds --output for a command that writes a file. Its value is the file's name, except that "json" and
// "yaml" mean a format on stdout, as with other commands; "./json" is a file.
func AddFileOutput(cmd *cobra.Command, output *string, usage string) {
	cmd.Flags().StringVarP(output, "output", "o", "", usage)
	cmd.Flags().Lookup("output").Annotations = map[string][]string{resultFlag: {"true"}}
}

// CheckOutput refuses a value of --output that is not among the formats that the flag was added with.
func CheckOutput(value string, formats ...string) error {
	if value == tableFormat && formats[0] == textFormat {
		return nil
	}
	return CheckOneOf("output", value, formats...)
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
