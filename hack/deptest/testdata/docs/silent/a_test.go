// Package silent is said only where no reader looks.
package silent
