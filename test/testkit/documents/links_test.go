package documents

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var (
	target   = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	quoted   = regexp.MustCompile("[`\"]make ([a-z0-9-]+)(?:[`\"]| [A-Z_]+=)") // a command, not a word of a sentence
	typed    = regexp.MustCompile(`(?m)^(?:\$ )?make ((?:[a-z0-9-]+ ?)+)`)
	document = regexp.MustCompile(`\bdocs/[a-zA-Z0-9_./-]+\.(?:md|svg|json)\b`)
	address  = regexp.MustCompile("https?://[a-zA-Z0-9][^\\s\"'`<>()\\[\\]{}|\\\\]+")
)

// TestWhatIsNamedIsThere checks documents, scripts, workflows and the sources of messages: the make targets and
// documents that they name exist, and their addresses are valid.
func TestWhatIsNamedIsThere(t *testing.T) {
	t.Parallel()
	makefile := must.Get(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	var targets []string
	for _, match := range target.FindAllSubmatch(makefile, -1) {
		targets = append(targets, string(match[1]))
	}
	named := map[string]int{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		if err != nil || entry.IsDir() {
			if entry != nil && slices.Contains([]string{".git", "bin", "node_modules", "testdata"}, entry.Name()) {
				return fs.SkipDir
			}
			return err
		}
		isDocument := strings.HasSuffix(name, ".md")
		isSource := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
		if !isDocument && !isSource && !slices.Contains([]string{".sh", ".yml", ".yaml"}, filepath.Ext(name)) {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(content)
		commands := quoted.FindAllStringSubmatch(text, -1)
		if isDocument {
			for _, block := range parse(name, content) {
				if block.ForShell() {
					commands = append(commands, typed.FindAllStringSubmatch(block.Text, -1)...)
				}
			}
		}
		for _, command := range commands {
			for _, word := range strings.Fields(command[1]) {
				named["targets"]++
				if !slices.Contains(targets, word) {
					t.Errorf("%s: %q: there is no target %q", name, command[0], word)
				}
			}
		}
		for _, match := range document.FindAllString(text, -1) {
			named["documents"]++
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(match))); err != nil {
				t.Errorf("%s names %q: %v", name, match, err)
			}
		}
		if !isDocument {
			return nil
		}
		for _, match := range address.FindAllString(text, -1) {
			named["addresses"]++
			checkAddress(t, name, strings.TrimRight(match, ".,;:!?*…"))
		}
		return nil
	})
	must.Do(t, err)
	if named["targets"] < 20 || named["documents"] < 20 || named["addresses"] < 10 {
		t.Errorf("only %v were found", named)
	}
}

// checkAddress checks an address in a document. External ones must use https and a host name.
func checkAddress(t *testing.T, name, text string) {
	t.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	host := parsed.Hostname()
	local := host == "localhost" || strings.HasPrefix(host, "127.")
	if parsed.Scheme != "https" && !local {
		t.Errorf("%s: %q is not encrypted", name, text)
	}
	if !local && strings.ToLower(host) != "host" && !strings.Contains(host, ".") {
		t.Errorf("%s: %q has no name of a host", name, text)
	}
}
