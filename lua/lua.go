// Package lua holds the scripts that run inside Redis. Each file's header lists its KEYS, ARGV, returns and errors; each
// file in algorithms/ says what its limits promise. Functions of all scripts are in prelude.lua, those of some in parts/:
//
//	doubt      deliveries that may have arrived
//	judging    one event and the limits on its path
//	wholesale  many events that surely fit, or surely do not
//	pairs      events that fire and those that resolve them
//	room       how many events wait
//	line       which of them come first
//	digests    what was dropped, and telling of it
//
// The sources run unchanged on Redis 6.2 and later and on Valkey, as scripts (EVAL) and as a library of functions
// (FCALL): no shebang, locals only, and every key they touch is in KEYS.
package lua

import (
	"crypto/sha1" //nolint:gosec // names a version, as Redis names scripts
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed *.lua parts/*.lua algorithms/*.lua
var files embed.FS

// Script names one of the scripts.
type Script string

// The scripts.
const (
	Decide   Script = "decide"
	Resolve  Script = "resolve"
	Announce Script = "announce"
	Finish   Script = "finish"
	Extend   Script = "extend"
	Refund   Script = "refund"
	Restore  Script = "restore"
	Pause    Script = "pause"
	Pace     Script = "pace"
	Mention  Script = "mention"
	Delay    Script = "delay"
	Turn     Script = "turn"
	Leave    Script = "leave"
	Room     Script = "room"
	Passed   Script = "passed"
	Usage    Script = "usage"

	AdoptLimits Script = "adopt_limits"

	CountDrops  Script = "count_drops"
	DueDigests  Script = "due_digests"
	ClaimDigest Script = "claim_digest"
	EndDigest   Script = "end_digest"
)

// Scripts lists them all.
var Scripts = []Script{
	Decide, Resolve, Announce, Finish, Extend, Refund, Restore, Pause, Pace, Mention, Delay, Turn, Leave, Room, Passed, Usage,
	AdoptLimits, CountDrops, DueDigests, ClaimDigest, EndDigest,
}

// Algorithms lists the names of the files in algorithms/.
var Algorithms = names("algorithms")

// names lists the files of a folder, without their endings.
func names(folder string) []string {
	entries, err := files.ReadDir(folder)
	if err != nil {
		panic("lua: " + err.Error())
	}
	found := make([]string, len(entries))
	for i, entry := range entries {
		found[i] = strings.TrimSuffix(entry.Name(), ".lua")
	}
	return found
}

// parts names the files in parts/ that a script needs; the others need none.
var parts = map[Script][]string{
	Decide:   {"doubt", "judging", "wholesale"},
	Resolve:  {"doubt", "pairs"},
	Announce: {"pairs"},
	Finish:   {"doubt", "pairs"},
	Extend:   {"doubt"},
	Refund:   {"doubt"},
	Restore:  {"doubt", "pairs"},
	Delay:    {"line", "pairs", "room"},
	Turn:     {"line"},
	Room:     {"room"},

	CountDrops:  {"digests"},
	DueDigests:  {"digests"},
	ClaimDigest: {"digests"},
	EndDigest:   {"digests"},
}

// Source composes a script as it is sent to the server: the prelude, the algorithms named, which are the names of files in
// algorithms/, the parts that it needs, and the script itself. The less there is, the less a call costs.
func Source(script Script, algorithms []string) string {
	return shared(algorithms, parts[script]) + read(string(script)+".lua")
}

// shared is what stands in front of scripts. Each algorithm has local names of its own.
func shared(algorithms, parts []string) string {
	var text strings.Builder
	text.WriteString(read("prelude.lua"))
	for _, name := range algorithms {
		text.WriteString("do\n" + read("algorithms/"+name+".lua") + "end\n")
	}
	for _, name := range parts {
		text.WriteString(read("parts/" + name + ".lua"))
	}
	return text.String()
}

// Library is all scripts, with all algorithms, as one library of functions. Its name and those of its functions carry a
// hash of the sources, so that instances of different versions do not meet.
func Library() (name, source string) {
	var body strings.Builder
	body.WriteString(shared(Algorithms, names("parts")))
	for _, script := range Scripts {
		body.WriteString("local function " + string(script) + "(KEYS, ARGV)\n" + read(string(script)+".lua") + "end\n")
	}
	sum := sha1.Sum([]byte(body.String())) //nolint:gosec // see above
	name = "notifier_" + hex.EncodeToString(sum[:])[:12]
	var text strings.Builder
	text.WriteString("#!lua name=" + name + "\n" + body.String())
	for _, script := range Scripts {
		text.WriteString("redis.register_function('" + Function(name, script) + "', " + string(script) + ")\n")
	}
	return name, text.String()
}

// Function is the name of a script in a library.
func Function(library string, script Script) string { return library + "_" + string(script) }

// read returns an embedded file. That all of them are there is certain once the program is built.
func read(path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic("lua: " + err.Error())
	}
	return string(text)
}
