// Package lua holds the scripts that run inside Redis. The header of a script lists KEYS, ARGV, replies and errors. The header
// of a file in algorithms/ states what its limits promise. README.md has tables of all keys, scripts and verdicts.
//
// The sources run unchanged on Redis 6.2 and later and on Valkey, as scripts (EVAL) and as a library of functions (FCALL). Therefore they
// have no shebang, use local names only, and name every key in KEYS.
package lua

import (
	"crypto/sha1" //nolint:gosec // the hash names a version, and protects nothing
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed *.lua */*.lua
var files embed.FS

// Script is the file of a script, without the ending.
type Script string

// The scripts.
const (
	Decide      Script = "decide"
	Finish      Script = "finish"
	Extend      Script = "extend"
	Refund      Script = "refund"
	Restore     Script = "restore"
	Passed      Script = "passed"
	Usage       Script = "usage"
	Explain     Script = "explain"
	AdoptLimits Script = "adopt_limits"

	Announce Script = "pairing/announce"
	Repeat   Script = "pairing/repeat"
	Resolve  Script = "pairing/resolve"
	Count    Script = "pairing/count"

	Pace    Script = "pacing/pace"
	Update  Script = "pacing/update"
	Updated Script = "pacing/updated"
	LookUp  Script = "pacing/look_up"
	Reading Script = "pacing/reading"
	Channel Script = "pacing/channel"
	Routes  Script = "pacing/routes"
	Pause   Script = "pacing/pause"
	Budgets Script = "pacing/budgets"
	Mention Script = "pacing/mention"

	Delay Script = "waiting/delay"
	Turn  Script = "waiting/turn"
	Leave Script = "waiting/leave"
	Room  Script = "waiting/room"

	CountDrops  Script = "summary/count_drops"
	DueDigests  Script = "summary/due_digests"
	ClaimDigest Script = "summary/claim_digest"
	EndDigest   Script = "summary/end_digest"
)

// Scripts lists all scripts.
var Scripts = []Script{
	Decide, Finish, Extend, Refund, Restore, Passed, Usage, Explain, AdoptLimits, Announce, Repeat, Resolve, Count, Pace, Update, Updated, LookUp,
	Reading, Channel, Routes, Pause, Budgets, Mention, Delay, Turn, Leave, Room, CountDrops, DueDigests, ClaimDigest, EndDigest,
}

// Algorithms lists the names of the files in algorithms/.
var Algorithms = names("algorithms")

// names returns the files of a folder, without the ending.
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

// include begins a line of a script that is replaced by the files it names.
const include = "--@include "

// Source composes a script: the prelude, and the script with the files that it includes. The name "algorithms" in an include
// line stands for the given files of algorithms/. A caller should give only those in use, since every line costs each call.
func Source(script Script, algorithms []string) string {
	var text strings.Builder
	text.WriteString(read("lib/prelude"))
	for line := range strings.Lines(read(string(script))) {
		names, found := strings.CutPrefix(line, include)
		if !found {
			text.WriteString(line)
			continue
		}
		for name := range strings.FieldsSeq(names) {
			text.WriteString(included(name, algorithms))
		}
	}
	return text.String()
}

// included returns the text for a name in an include line. Each algorithm is a block, so its local names are its own.
func included(name string, algorithms []string) string {
	if name != "algorithms" {
		return read(name)
	}
	var text strings.Builder
	for _, algorithm := range algorithms {
		text.WriteString("do\n" + read("algorithms/"+algorithm) + "end\n")
	}
	return text.String()
}

// Library returns all scripts, with all algorithms, as one library of functions. The names of the library and of its functions contain a
// hash of the sources, so that an instance never calls the functions of another version.
func Library() (name, source string) {
	var body strings.Builder
	body.WriteString(read("lib/prelude") + "local scripts = {} -- a function may have 200 locals\n")
	isWritten := make(map[string]bool)
	for _, script := range Scripts {
		for line := range strings.Lines(read(string(script))) {
			names, _ := strings.CutPrefix(line, include)
			for name := range strings.FieldsSeq(names) {
				if line != names && !isWritten[name] {
					isWritten[name] = true
					body.WriteString(included(name, Algorithms))
				}
			}
		}
	}
	for _, script := range Scripts {
		body.WriteString("function scripts." + script.identifier() + "(KEYS, ARGV)\n" + read(string(script)) + "end\n")
	}
	sum := sha1.Sum([]byte(body.String())) //nolint:gosec // as at the import
	name = "notifier_" + hex.EncodeToString(sum[:])[:12]
	var text strings.Builder
	text.WriteString("#!lua name=" + name + "\n" + body.String())
	for _, script := range Scripts {
		text.WriteString("redis.register_function('" + Function(name, script) + "', scripts." + script.identifier() + ")\n")
	}
	return name, text.String()
}

func (s Script) identifier() string { return strings.ReplaceAll(string(s), "/", "_") }

// Function returns the name of a script's function in a library.
func Function(library string, script Script) string { return library + "_" + script.identifier() }

// read returns an embedded file by its name without the ending. It panics for a missing file, which only a wrong include line
// can name.
func read(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic("lua: " + err.Error())
	}
	return marked(string(text))
}
