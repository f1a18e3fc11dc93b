package credentialcache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/cachefile"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

const (
	// maxNotes bounds each file of notes: some three hundred askers. It then begins again.
	maxNotes = 16 << 10
	// refusalCounts is how long a refused login counts for the process that has asked for it.
	refusalCounts = 10 * time.Second
)

// Asked notes that a process has got a credential, and reports whether it had got the same one before. kubectl asks once,
// and a second time only when the cluster has refused what it got.
//
// The notes are in a file of their own next to the cache: Pinniped's CLI would drop them from the cache. They hold no
// secret. There is no lock, and a note that is lost does no harm: the process gets what is in the cache.
func (c *Cache) Asked(
	key string,
	process int,
	credential *clientauthenticationv1beta1.ExecCredentialStatus,
) (before bool) {
	if credential == nil {
		return false
	}
	sum := sha256.Sum256([]byte(credential.Token + "\x00" + credential.ClientCertificateData))
	note := fmt.Sprintf("%.16s %d %s\n", key, process, hex.EncodeToString(sum[:8]))
	if strings.Contains("\n"+c.notes(".asked"), "\n"+note) {
		return true
	}
	c.note(".asked", note)
	return false
}

// Refusal is why a login was refused, and what to do about it.
type Refusal struct{ Message, Hint string }

// Refuse notes that the login that a process has asked for was refused.
func (c *Cache) Refuse(key string, process int, why Refusal) {
	text, err := json.Marshal(why)
	if err != nil {
		return
	}
	c.note(".refused", fmt.Sprintf("%.16s %d %d %s\n", key, process, c.Now().Unix(), text))
}

// Refused returns why the login that this process asks for was refused to it a few seconds ago, or nil. kubectl asks again
// for each of its first requests, and a person has answered once.
func (c *Cache) Refused(key string, process int) *Refusal {
	mine := fmt.Sprintf("%.16s %d ", key, process)
	for line := range strings.Lines(c.notes(".refused")) {
		rest, ours := strings.CutPrefix(line, mine)
		var at int64
		if _, err := fmt.Sscan(rest, &at); !ours || err != nil || c.Now().Sub(time.Unix(at, 0)).Abs() > refusalCounts {
			continue
		}
		_, text, _ := strings.Cut(rest, " ")
		var why Refusal
		if json.Unmarshal([]byte(text), &why) == nil {
			return &why
		}
	}
	return nil
}

// notes returns the notes of a kind, "" if there are none that count.
func (c *Cache) notes(kind string) string {
	if c.Path == "" {
		return ""
	}
	notes, err := atomicfile.ReadFile(c.Path+kind, maxNotes)
	if err != nil {
		return ""
	}
	return string(notes)
}

// note adds a note.
func (c *Cache) note(kind, note string) {
	if c.Path != "" && os.MkdirAll(filepath.Dir(c.Path), 0o700) == nil {
		_ = cachefile.Append(c.Path+kind, note, maxNotes)
	}
}
