package certs

import (
	"bytes"
	"crypto/ed25519"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"

	"golang.org/x/crypto/ssh"
)

type asn1Element = asn1.RawValue

const classContext = asn1.ClassContextSpecific

// marker recognises BEGIN and END lines also where they are damaged: with too few dashes, in the middle of a line, or
// one right behind the other.
func marker() *regexp.Regexp {
	return regexp.MustCompile(`(?i)-{2,5} ?(BEGIN|END) ([A-Z0-9][A-Z0-9 ]{0,40}?) ?-{2,5}`)
}

// plainText undoes what word processors, mail programs and JSON do to text, as far as it is outside of base64.
func plainText(data []byte) []byte {
	return []byte(strings.NewReplacer(
		"\u2010", "-", "\u2011", "-", "\u2012", "-", "\u2013", "-", "\u2212", "-", "\u2014", "--", // typographic dashes
		"\u00a0", " ", "\u200b", "", utf8BOM, "", // spaces that cannot be seen, and the byte order mark
		`\r\n`, "\n", `\n`, "\n", `\/`, "/", // JSON
		"\r\n", "\n", "\r", "\n",
	).Replace(string(data)))
}

func hasMarker(data []byte) bool { return marker().Match(plainText(data)) }

// readText finds the blocks of PEM, however badly they are written.
func (r *repairer) readText(data []byte) {
	if bytes.Contains(data, []byte(utf8BOM)) {
		r.did("left out a byte order mark")
		data = bytes.ReplaceAll(data, []byte(utf8BOM), nil)
	}
	text := plainText(data)
	if !bytes.Equal(text, bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))) {
		r.did("made plain text of it: line breaks, hyphens and spaces as PEM wants them")
	}
	marks := marker().FindAllSubmatchIndex(text, -1)
	var outside [][]byte
	number, line, counted := 0, 1, 0
	for i, at := 0, 0; i < len(marks); i++ {
		mark := marks[i]
		word, label := strings.ToUpper(string(text[mark[2]:mark[3]])), strings.ToUpper(string(text[mark[4]:mark[5]]))
		number++
		from, content, end := mark[0], text[mark[1]:], len(text)
		var closed bool
		switch {
		case word == "END": // its BEGIN is lost
			from, content, end, closed = at, text[at:mark[0]], mark[1], true
		case i+1 < len(marks):
			content, end = text[mark[1]:marks[i+1][0]], marks[i+1][0]
			if strings.EqualFold(string(text[marks[i+1][2]:marks[i+1][3]]), "END") {
				end, closed = marks[i+1][1], true
				i++
			}
		}
		if word != "END" {
			outside = append(outside, text[at:from])
		}
		begin := max(at, 1+bytes.LastIndexByte(text[:from], '\n')) // of the line, unless another block ends there
		line, counted = line+bytes.Count(text[counted:from], []byte("\n")), from
		name := fmt.Sprintf("block %d (line %d)", number, line)
		whole := text[begin:end]
		if !closed {
			whole = append(slices.Clone(whole), '\n')
		}
		trouble := untidy(whole)
		if trouble == "" && begin > 0 && text[begin-1] != '\n' {
			trouble = "it began on the line on which the block before it ended"
		}
		if trouble != "" {
			r.did("%s: wrote it anew: %s", name, trouble)
		}
		r.readBlock(content, name, label)
		at = end
		if i+1 >= len(marks) {
			outside = append(outside, text[end:])
		}
	}
	if len(bytes.TrimSpace(bytes.Join(outside, nil))) > 0 {
		r.did("left out the text outside of the blocks")
	}
}

// untidy says what is wrong with the text of one block; empty when every program reads it.
func untidy(text []byte) string {
	blocks := readPEM(text).blocks
	switch {
	case len(blocks) == 0:
		return "its BEGIN line is damaged"
	case blocks[0].problem != "":
		return blocks[0].problem
	case blocks[0].headers:
		return "it has PEM headers"
	case blocks[0].blank > 0:
		return "it has an empty line in it"
	default:
		return ""
	}
}

// readBlock decodes the content of a block and takes what is in it.
func (r *repairer) readBlock(content []byte, name, label string) {
	headers, body := splitHeaders(content)
	der := unbase64Loose(body)
	if strings.Contains(headers["Proc-Type"], "ENCRYPTED") {
		r.addKey(foundKey{block: &pem.Block{Type: label, Headers: headers, Bytes: der}})
		return
	}
	if label == labelOpenSSH {
		key, problem := parseOpenSSH(der)
		if problem != "" {
			r.lose("%s is a key in OpenSSH's own format %s", name, problem)
			r.hint = "take its passphrase away with ssh-keygen -p -f FILE, then: " + strings.TrimPrefix(
				keyRepairCommand,
				"write the key again: ",
			)
			return
		}
		r.takeKey(key, name, label)
		return
	}
	r.readDER(der, name, label)
}

// splitHeaders takes "Name: value" lines off the front of a block.
func splitHeaders(content []byte) (headers map[string]string, body []byte) {
	headers = map[string]string{}
	rest := bytes.TrimLeft(content, " \t\n")
	for {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		name, value, ok := strings.Cut(string(line), ": ")
		if !ok {
			return headers, rest
		}
		headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
		rest = after
	}
}

// unbase64Loose decodes base64 up to its end or to the first character that cannot be part of it. It passes over
// white space and over what mail programs and JSON put around lines. The length that DER has within tells whether all
// is there.
func unbase64Loose(text []byte) []byte {
	around := func(c rune) bool { return strings.ContainsRune(" \t\n\v\f\\\"',>|", c) }
	end := bytes.IndexFunc(text, func(c rune) bool { return !isBase64(c) && !around(c) }) // "=" or damage
	if end < 0 {
		end = len(text)
	}
	digits := bytes.Map(func(c rune) rune {
		if around(c) {
			return -1
		}
		return c
	}, text[:end])
	if len(digits)%4 == 1 {
		digits = digits[:len(digits)-1]
	}
	decoded := make([]byte, base64.RawStdEncoding.DecodedLen(len(digits)))
	n, _ := base64.RawStdEncoding.Decode(decoded, digits) // only digits are left
	return decoded[:n]
}

func isBase64(c rune) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '+' || c == '/'
}

// parseOpenSSH reads a key in OpenSSH's own format, or says why it cannot.
func parseOpenSSH(der []byte) (key any, problem string) {
	key, err := ssh.ParseRawPrivateKey(pem.EncodeToMemory(&pem.Block{Type: labelOpenSSH, Bytes: der}))
	var encrypted *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &encrypted):
		return nil, "that is protected by a passphrase"
	case err != nil:
		return nil, "that is damaged, or of a type that TLS servers do not use"
	}
	if pointer, ok := key.(*ed25519.PrivateKey); ok {
		key = *pointer
	}
	return key, ""
}

// fromUTF16 returns text in UTF-16 as UTF-8.
func fromUTF16(data []byte) ([]byte, bool) {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}):
		order, data = binary.LittleEndian, data[2:]
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		order, data = binary.BigEndian, data[2:]
	case looksUTF16(data) && data[0] == 0:
		order = binary.BigEndian
	case looksUTF16(data):
		order = binary.LittleEndian
	default:
		return nil, false
	}
	units := make([]uint16, len(data)/2)
	for i := range units {
		units[i] = order.Uint16(data[2*i:])
	}
	return []byte(string(utf16.Decode(units))), true
}
