package main

import "slices"

// mutant is a bug, and the test that has to find it.
type mutant struct {
	name string
	bug  string // one sentence about what is wrong

	// The file has a path relative to the module's folder. It contains old exactly once, and new replaces old.
	file, old, new string
	more           []edit // further changes that the bug needs

	test string // the package and the flags of `go test`, separated by spaces
	tags string // build tags of the test
}

// edit is a change of a file.
type edit struct{ file, old, new string }

func (m mutant) edits() []edit { return append([]edit{{m.file, m.old, m.new}}, m.more...) }

// table returns all mutants. Each part of the table has a file of its own.
func table() []mutant {
	return slices.Concat(ofAlgorithms, ofDeciding, ofRecords, ofDigests, ofThrottle, ofKeys, ofConsume, ofDelayed, ofWhy, ofIngest, ofOthers)
}
