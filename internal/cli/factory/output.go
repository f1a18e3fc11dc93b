package factory

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// resultFlag is the annotation of an --output flag whose value is, or may be, a format.
const resultFlag = "pinniped_result_format"

// textFormat is the format for people and the default of most commands; tableFormat is an alias.
const (
	textFormat  = "text"
	tableFormat = "table"
)

// Formats returns the values of --output: those of nearly all commands, and others.
func Formats(others ...string) []string {
	return append([]string{textFormat, "json", "yaml"}, others...)
}

// AddOutput adds --output for the format of the result. The first format is the default.
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

// AddFileOutput adds --output for a command that writes a file. The value is the file name, but "json" and "yaml" are
// formats on stdout, as with other commands. "./json" is a file.
func AddFileOutput(cmd *cobra.Command, output *string, usage string) {
	cmd.Flags().StringVarP(output, "output", "o", "", usage)
	cmd.Flags().Lookup("output").Annotations = map[string][]string{resultFlag: {"true"}}
}

// CheckOutput rejects a value of --output that is not one of formats.
func CheckOutput(value string, formats ...string) error {
	if value == tableFormat && formats[0] == textFormat {
		return nil
	}
	return CheckOneOf("output", value, formats...)
}

// OutputOf returns the output format in a command line, even if the command line is invalid otherwise. It returns "" if
// there is none, and for a command without AddOutput.
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
	_ = flags.Parse(args) // the command reports the error
	return *format
}
