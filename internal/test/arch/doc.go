// Package arch tests what holds for the module as a whole: which package may
// import which (the table in arch_test.go), that every file is formatted, and
// that none names a directory of the machine it was written on.
package arch
