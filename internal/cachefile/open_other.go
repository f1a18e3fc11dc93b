//go:build !unix

package cachefile

const asItIs = 0 // only administrators make symbolic links on Windows
