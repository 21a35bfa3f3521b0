// Package tests has only tests, one of which documents it.
package tests_test
