// Package lua holds the scripts that run inside Redis. Each file's header lists its KEYS, ARGV, returns and errors.
//
// The scripts run unchanged on Redis 6.2 and later and on Valkey: no shebang, locals only, and every key they touch
// is in KEYS.
package lua

import _ "embed" // the scripts are files of their own

//go:embed prelude.lua
var prelude string

//go:embed decide.lua
var decide string

//go:embed finish.lua
var finish string

//go:embed extend.lua
var extend string

//go:embed refund.lua
var refund string

//go:embed restore.lua
var restore string

//go:embed pause.lua
var pause string

//go:embed usage.lua
var usage string

// The scripts as they are sent to the server.
var (
	Decide  = prelude + decide
	Finish  = prelude + finish
	Extend  = prelude + extend
	Refund  = prelude + refund
	Restore = prelude + restore
	Pause   = prelude + pause
	Usage   = prelude + usage
)
