package ui

import "strings"

// ShellWord returns text as one word of a shell's command line. Hints have commands in them that people copy.
func ShellWord(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+~"
	if text != "" && text[0] != '~' && strings.Trim(text, harmless) == "" {
		return text
	}
	if shown := Plain(text); shown != text {
		return "$'" + strings.ReplaceAll(shown, "'", `\'`) + "'" // so that the command stays on its line
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
