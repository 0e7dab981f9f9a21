// Package script runs the project's Lua scripts in Redis.
//
// A [Runner] belongs to one deployment. It owns the client, the deployment's prefix with the key names built from it, the timeout of one
// call, and the choice between scripts (EVAL) and a library of functions (FCALL). The packages that call the scripts define their meaning:
// internal/throttle, internal/pacing and internal/summary.
//
// All keys of a deployment have one hash tag, so that a cluster keeps them on one node. Each call gets one key more than the
// caller names: the absent key, which never exists. See [Runner.Absent].
//
// An error of a call has one of four classes. [ErrUnavailable]: Redis cannot answer now; retry later. [ErrRefused]: Redis refused the call,
// or its reply is malformed; an operator has to act. [ErrForbidden] is the part of ErrRefused that concerns the user. [ErrStale]: the
// script found newer limits in force. After ErrUnavailable the script may have run: the caller may repeat any script with identical
// arguments.
//
// Any number of goroutines may use a Runner at once. [Runner.Scratch] makes a Runner for a self-test: its keys belong to no deployment, and
// what it adopts affects no other Runner.
package script
