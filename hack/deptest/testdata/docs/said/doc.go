// Package said is documented in one of its files.
package said
