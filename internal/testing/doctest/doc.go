// Package doctest is for tests of the documentation: it reads the fenced blocks of a page, and compares what a page shows with what a
// command prints. It runs nothing itself, keeps no state, and everything in it may run at once.
//
// The info string of a block names its language and, after a space, at most one option:
//
//	sh                 commands that can be pasted; they run, and all of them succeed
//	output             what the commands of the block before print; without it, they may print anything
//	output eventually  the same; the commands change nothing and are repeated until they print it
//	output status 1    the same; the last command ends with that status
//	env                settings of the notifier, as in a file: each line is accepted
//	go                 a program that is built and runs
//	python, javascript a program whose syntax is checked
//	json, yaml         a document that is parsed
//	text               neither commands nor what they print; the option below says what else it is
//	… not run: WHY     nothing runs, and a syntax is checked where the language has one
//
// Anything else is an error, so that no block is skipped by mistake. A block inside an HTML comment counts like any other: it is hidden
// from readers, and it prepares what the later blocks need.
package doctest
