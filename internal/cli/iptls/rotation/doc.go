// Package rotation is the record of a rotation to a certificate of another CA: its phases, the tls block of each, the
// step that comes next, and the guard that keeps other commands away meanwhile. It is pure.
package rotation
