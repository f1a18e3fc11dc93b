package certs

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"unicode/utf16"
)

// pemBlock is a block of a PEM file, including those that pem.Decode silently skips, with the reason.
type pemBlock struct {
	number  int    // counted from 1, over all blocks
	line    int    // of BEGIN
	label   string // such as "CERTIFICATE"
	bytes   []byte // the content; nil if problem is set
	headers bool   // there are "Name: value" lines before the content
	// the line of an empty line within the content, which OpenSSL mistakes for the end of headers; 0 for none
	blank   int
	skipped bool   // strict programs silently skip it (a BOM, text before BEGIN)
	problem string // why it cannot be parsed, or ""
	before  string // the text before BEGIN on its line
}

// pemFile is the content of a PEM file.
type pemFile struct {
	blocks []pemBlock
	// junkAfter is the line of the first text after the last block; 0 for none.
	junkAfter int
}

const (
	utf8BOM  = "\xef\xbb\xbf"
	pemBegin = "-----BEGIN "
	pemEnd   = "-----END "
)

// readPEM splits data into blocks in one pass, so that the cost is linear even for hostile data. The caller must check
// its size.
func readPEM(data []byte) pemFile {
	var file pemFile
	lines := splitLines(data)
	lastEnd := -1 // index of the line after the last block
	for i := 0; i < len(lines); i++ {
		before, label, ok := beginLine(lines[i])
		if !ok {
			if problem := strayMarker(lines[i]); problem != "" {
				file.blocks = append(file.blocks, pemBlock{number: len(file.blocks) + 1, line: i + 1, problem: problem})
				lastEnd = i + 1
			}
			continue
		}
		block := pemBlock{number: len(file.blocks) + 1, line: i + 1, label: label, before: before}
		end, problem := findEnd(lines, i, label)
		if problem == "" {
			problem = misplaced(before)
			block.skipped = problem != ""
		}
		if problem == "" {
			block.bytes, block.headers, problem = decodeBlock(lines[i:end+1], label)
			if at := blankLine(lines[i : end+1]); at > 0 && !block.headers {
				block.blank = i + 1 + at
			}
		}
		block.problem = problem
		file.blocks = append(file.blocks, block)
		i = end
		lastEnd = end + 1
	}
	if len(file.blocks) == 0 {
		return file
	}
	for i := lastEnd; i < len(lines); i++ {
		if len(bytes.TrimSpace(lines[i])) > 0 {
			file.junkAfter = i + 1
			break
		}
	}
	return file
}

// splitLines splits data into lines, without line endings.
func splitLines(data []byte) [][]byte {
	lines := bytes.Split(data, []byte("\n"))
	for i, line := range lines {
		lines[i] = bytes.TrimSuffix(line, []byte("\r"))
	}
	return lines
}

// beginLine finds "-----BEGIN LABEL-----" in a line, and the text before it.
func beginLine(line []byte) (before, label string, ok bool) {
	start := bytes.Index(line, []byte(pemBegin))
	if start < 0 {
		return "", "", false
	}
	rest := line[start+len(pemBegin):]
	stop := bytes.Index(rest, []byte("-----"))
	if stop < 0 {
		return "", "", false
	}
	// Text after the closing dashes means that line breaks are lost; findEnd reports that.
	return string(line[:start]), string(rest[:stop]), true
}

// strayMarker recognizes a BEGIN or END that is damaged or unmatched.
func strayMarker(line []byte) string {
	switch {
	case bytes.Contains(line, []byte(pemEnd)):
		return "an END line has no matching BEGIN"
	case bytes.Contains(line, []byte("BEGIN ")) && bytes.Contains(line, []byte("--")):
		return "its BEGIN line is damaged"
	default:
		return ""
	}
}

// findEnd returns the index of the last line of the block that starts at line start.
func findEnd(lines [][]byte, start int, label string) (end int, problem string) {
	rest := lines[start][bytes.Index(lines[start], []byte(pemBegin))+len(pemBegin):]
	rest = rest[bytes.Index(rest, []byte("-----"))+len("-----"):]
	if len(bytes.TrimSpace(rest)) > 0 {
		return start, "its line breaks are lost: text follows BEGIN on the same line"
	}
	for i := start + 1; i < len(lines); i++ {
		line := lines[i]
		at := bytes.Index(line, []byte(pemEnd))
		if at < 0 {
			if bytes.Contains(line, []byte(pemBegin)) {
				return i - 1, "it has no END line before the next block begins"
			}
			continue
		}
		after := line[at+len(pemEnd):]
		stop := bytes.Index(after, []byte("-----"))
		switch {
		case stop < 0:
			return i, "its END line is cut short"
		case string(after[:stop]) != label:
			return i, fmt.Sprintf("it begins as %s and ends as %s", quote(label), quote(string(after[:stop])))
		case bytes.Contains(after[stop:], []byte(pemBegin)):
			// The next block starts on this line, which the caller skips, so it is reported here.
			return i, "the line break between its END and the BEGIN of the next block is missing"
		case len(bytes.TrimSpace(after[stop+len("-----"):])) > 0:
			return i, "text follows its END on the same line"
		case at > 0:
			return i, "its END is not at the beginning of a line"
		}
		return i, ""
	}
	return len(lines) - 1, "it has no END line"
}

// misplaced describes text in front of BEGIN; other programs silently skip such a block.
func misplaced(before string) string {
	switch {
	case before == "":
		return ""
	case strings.HasPrefix(before, utf8BOM) && strings.TrimSpace(before[len(utf8BOM):]) == "":
		return "it begins with a byte order mark (BOM)"
	case strings.TrimSpace(before) == "":
		return "it is indented: BEGIN must be at the beginning of the line"
	default:
		return "there is text before BEGIN on the same line"
	}
}

// blankLine returns the index of the first empty line within a block, or 0. One right after BEGIN is harmless.
func blankLine(lines [][]byte) int {
	for i, line := range lines {
		if i > 1 && len(bytes.TrimSpace(line)) == 0 {
			return i
		}
	}
	return 0
}

func decodeBlock(lines [][]byte, label string) (content []byte, headers bool, problem string) {
	trimmed := make([][]byte, len(lines))
	for i, line := range lines {
		trimmed[i] = bytes.TrimSpace(line)
	}
	block, _ := pem.Decode(append(bytes.Join(trimmed, []byte("\n")), '\n'))
	if block == nil || block.Type != label {
		return nil, false, "its content is not base64"
	}
	if len(block.Bytes) == 0 {
		return nil, false, "it is empty"
	}
	if !bytes.HasPrefix(bytes.TrimSpace(lines[len(lines)-1]), []byte(pemEnd)) {
		return nil, false, "its END line is damaged"
	}
	return block.Bytes, len(block.Headers) > 0, ""
}

// isDER reports whether data starts like a certificate or key in DER: with a long sequence, or a short one that is all
// of it.
func isDER(data []byte) bool {
	return len(data) > 4 && data[0] == 0x30 && (data[1] >= 0x80 || int(data[1])+2 == len(data))
}

func unbase64(text []byte) ([]byte, bool) {
	compact := bytes.Join(bytes.Fields(text), nil)
	decoded, err := base64.StdEncoding.DecodeString(string(compact))
	return decoded, err == nil && len(decoded) > 0
}

// isPKCS12 recognizes a PFX: SEQUENCE { INTEGER 3, ...
func isPKCS12(data []byte) bool {
	if len(data) < 8 || data[0] != 0x30 {
		return false
	}
	header := 2
	if data[1] > 0x80 {
		header += int(data[1] & 0x7f)
	}
	return len(data) > header+2 && bytes.Equal(data[header:header+3], []byte{2, 1, 3})
}

func looksUTF16(data []byte) bool {
	if len(data) < 40 || len(data)%2 != 0 {
		return false
	}
	for _, bigEndian := range []bool{false, true} {
		units := make([]uint16, 20)
		for i := range units {
			low, high := data[2*i], data[2*i+1]
			if bigEndian {
				low, high = high, low
			}
			units[i] = uint16(low) | uint16(high)<<8
		}
		if strings.HasPrefix(string(utf16.Decode(units)), "-----BEGIN") {
			return true
		}
	}
	return false
}
