// These are some things.
package other
