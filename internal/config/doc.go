// Package config reads the settings of the notifier from its environment: every NOTIFIER_*
// variable, its default, its form, and the rules between several of them.
//
// It owns the names, defaults and descriptions of the settings; the table in the manual is
// made from them. It reads the environment and the files that variables name, and nothing
// else: no server is asked. Plain, typed values come out.
//
// Load finds every fault before it returns, so that one start shows all that is to be mended.
// A fault never shows a secret, and neither does a Config that is printed or logged: see
// Secret. On any fault the Config is not to be used.
//
// Load reads the process's environment, so it must not run while that is being changed. Its
// results are never changed afterwards and may be used by any number of goroutines.
package config
