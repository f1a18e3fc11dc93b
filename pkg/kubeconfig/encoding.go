package kubeconfig

import (
	"bytes"
	"fmt"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
)

// encodings are the encodings by byte order mark. PowerShell writes them.
var encodings = map[string]encoding.Encoding{
	"\xff\xfe":     unicode.UTF16(unicode.LittleEndian, unicode.UseBOM),
	"\xfe\xff":     unicode.UTF16(unicode.BigEndian, unicode.UseBOM),
	"\xef\xbb\xbf": unicode.UTF8BOM,
}

// inUTF8 calls change with content in UTF-8 without byte order mark, and returns the result in the original encoding.
func inUTF8(content []byte, change func(text []byte) (changed []byte, err error)) ([]byte, error) {
	for mark, as := range encodings {
		if !bytes.HasPrefix(content, []byte(mark)) {
			continue
		}
		text, err := as.NewDecoder().Bytes(content)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if back, err := as.NewEncoder().Bytes(text); err != nil || !bytes.Equal(back, content) {
			return nil, fmt.Errorf("%w: it has characters that are not valid in its encoding", ErrDamaged)
		}
		changed, err := change(text)
		if err != nil {
			return nil, err
		}
		return as.NewEncoder().Bytes(changed)
	}
	return change(content)
}
