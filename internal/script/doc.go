// Package script runs the project's Lua scripts in Redis.
//
// A [Runner] belongs to one deployment. It owns the client, the deployment's prefix with the key names built from it, the timeout
// of one call, and the way in which the scripts run: as scripts (EVAL), or as a library of functions (FCALL). What a script means
// is the matter of the package that calls it: internal/throttle, internal/pacing and internal/summary.
//
// All keys of a deployment have one hash tag, so that a cluster keeps them on one node. Each call gets one key more than the
// caller names: the absent key, which never exists. See [Runner.Absent].
//
// An error of a call has one of four classes. [ErrUnavailable]: Redis could not be asked; waiting helps. [ErrRefused]: Redis
// answered and refused, or its reply has not the expected form; somebody has to act. [ErrForbidden] is the part of ErrRefused
// that concerns the user. [ErrStale]: the script found newer limits in force. After ErrUnavailable the script may have run: each
// script can be called again with the same arguments.
//
// A Runner may be used by any number of goroutines at once. [Runner.Scratch] makes a Runner for a self-test: its keys belong to no
// deployment, and what it adopts changes nothing for others.
package script
