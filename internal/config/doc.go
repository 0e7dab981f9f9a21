// Package config reads the settings of the notifier from the NOTIFIER_* variables of its environment.
//
// The package owns the names, defaults and descriptions of the settings. The table in the README is generated from them. The package reads
// the environment and the files that variables name. It connects to no server.
//
// [Load] finds every fault before it returns. No fault shows a secret, and no [Config] that is printed or logged shows one: see
// [Secret].
//
// Load must not run while the environment is changed. Its results are never changed afterwards, so any number of goroutines may
// use them.
package config
