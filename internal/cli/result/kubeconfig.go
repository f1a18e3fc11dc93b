package result

import "slices"

// KubeconfigRotation is what was done with each kubeconfig.
type KubeconfigRotation struct {
	Head
	Endpoint string   `json:"endpoint"`
	CABundle CABundle `json:"caBundle"`
	DryRun   bool     `json:"dryRun"`
	Files    []File   `json:"files"`
}

// CodeInsecure is the code of an entry that verifies nothing, so that no CA bundle locks its clients out.
const CodeInsecure = "Insecure"

// Trusting counts the files whose clients now verify the endpoint with the CA bundle, or do not verify it at all. It
// returns the paths of the other files that lead to the endpoint. A file that could not be evaluated counts as one
// of these. Files that do not lead to the endpoint are left out.
func (r *KubeconfigRotation) Trusting() (count int, without []string) {
	for _, file := range r.Files {
		left := func(e Entry) bool { return e.Outcome == FileSkipped && e.Code != CodeInsecure }
		switch {
		case file.Outcome == FileUnrelated:
		case file.Outcome == FileFailed, file.Outcome == FileNotDone, slices.ContainsFunc(file.Entries, left),
			file.Outcome == FileSkipped && len(file.Entries) == 0:
			without = append(without, file.Path)
		default:
			count++
		}
	}
	return count, without
}
