//go:build soak

package soak

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/oracle"
)

// admission is an admission of an event, read from the append-only file.
type admission struct {
	ID       string
	Slots    int64
	At       int64 // microseconds
	Returned bool  // its slots were given back
	From     int64 // the earliest time of the return
	Upto     int64 // the latest time of the return
}

// redisHistory is the history in the append-only file of Redis: each kept write, in order. The file has the changes of a script and not its
// calls, so each admission is there once.
type redisHistory struct {
	admissions []*admission
	recorded   map[string]time.Time // ID -> when it was recorded first as delivered or folded
	faults     []string             // against all or nothing
	overInUse  []string             // against the limit of deliveries under way
	runs       []string             // of recorded calls: the time and the call

	nameOf func(identity string) string // returns the ID in the ledger

	root     map[string]*admission // ID -> its admission in the global log
	logs     map[string]logBook    // by key
	seen     map[string]bool       // keys of all logs, including empty ones
	inFlight map[string]int64      // member -> expiry
	returns  []*admission          // since the latest admission
	latest   int64                 // time of the latest admission
}

// logBook is the content of a log: member -> time.
type logBook map[string]int64

const (
	keyPrefix   = "{notifier}:"
	rootLog     = keyPrefix + "log"
	doneKey     = keyPrefix + "done"
	leasedKey   = keyPrefix + "leased"
	inFlightKey = keyPrefix + "inflight:10000:busy"
	markOfCall  = keyPrefix + "history:"
)

// readHistory reads the append-only file in a folder of Redis. nameOf returns the ID of an identity in the ledger.
func readHistory(folder string, nameOf func(identity string) string) (*redisHistory, error) {
	parts, err := filepath.Glob(filepath.Join(folder, "appendonlydir", "*.incr.aof"))
	if len(parts) == 0 {
		parts, err = filepath.Glob(filepath.Join(folder, "appendonly.aof")) // of Redis 6.2
	}
	if err != nil {
		return nil, fmt.Errorf("find the append-only file in %s: %w", folder, err)
	}
	if len(parts) != 1 {
		return nil, fmt.Errorf("find the append-only file in %s: %d files", folder, len(parts))
	}
	file, err := os.Open(parts[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	j := &redisHistory{
		recorded: make(map[string]time.Time), root: make(map[string]*admission), logs: make(map[string]logBook), seen: make(map[string]bool),
		inFlight: make(map[string]int64), nameOf: nameOf,
	}
	in := bufio.NewReaderSize(file, 1<<20)
	var transaction [][]string
	within := false
	for {
		command, err := readCommand(in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", parts[0], err)
		}
		switch name := strings.ToUpper(command[0]); {
		case name == "MULTI":
			within, transaction = true, transaction[:0]
		case name == "EXEC":
			within = false
			j.apply(transaction)
		case within:
			transaction = append(transaction, command)
		default:
			j.apply([][]string{command})
		}
	}
	j.endReturns(math.MaxInt64)
	return j, nil
}

func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readLength(in, '*')
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := readLength(in, '$')
		if err != nil {
			return nil, fmt.Errorf("in a command of %d words: %w", n, noEOF(err))
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, noEOF(err)
		}
		command[i] = string(word[:size])
	}
	return command, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func readLength(in *bufio.Reader, mark byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] == '#' { // an annotation, such as a time
		return readLength(in, mark)
	}
	if line[0] != mark {
		return 0, fmt.Errorf("%q where %q was expected", line, mark)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// apply applies the writes of one call of a script.
func (j *redisHistory) apply(commands [][]string) {
	taken := make(map[string]map[string]*admission) // by log, by ID
	var unleased []string
	for _, c := range commands {
		if len(c) < 2 {
			continue
		}
		name, key := strings.ToUpper(c[0]), c[1]
		path, isLog := strings.CutPrefix(key, rootLog)
		isLog = isLog && !strings.Contains(path, ":scratch:") // a key of a self-test
		switch {
		case isLog:
			j.applyToLog(name, key, c[2:], taken)
		case key == doneKey && name == "ZADD":
			for score, member := range scored(c[2:]) {
				if id := j.idOf(member); j.recorded[id].IsZero() {
					j.recorded[id] = time.UnixMicro(score).Add(-recordsKept)
				}
			}
		case key == leasedKey && name == "ZREM":
			unleased = append(unleased, c[2:]...)
		case key == inFlightKey:
			j.applyToInFlight(name, c[2:])
		case name == "SET" && strings.HasPrefix(key, markOfCall):
			j.runs = append(j.runs, c[2]+" "+strings.TrimPrefix(key, markOfCall))
		}
	}
	for _, record := range unleased {
		if id := j.idOf(record); j.recorded[id].IsZero() { // the lease ended without a delivery
			j.giveBack(id)
		}
	}
	j.compare(taken)
}

// idOf returns the ID in the ledger of a record or of a member of a log.
func (j *redisHistory) idOf(member string) string {
	identity, _, _ := strings.Cut(member, "\n")
	return j.nameOf(identity)
}

// giveBack notes the return of an event's slots.
func (j *redisHistory) giveBack(id string) {
	if a := j.root[id]; a != nil && !a.Returned {
		a.Returned, a.From = true, max(j.latest, a.At)
		j.returns = append(j.returns, a)
	}
}

// scored iterates over the scores and members of a ZADD.
func scored(words []string) func(func(int64, string) bool) {
	return func(yield func(int64, string) bool) {
		for len(words) > 0 && strings.Trim(words[0], "NXCHxnch") == "" {
			words = words[1:]
		}
		for i := 0; i+1 < len(words); i += 2 {
			score, err := strconv.ParseFloat(words[i], 64)
			if err != nil {
				return
			}
			if !yield(int64(score), words[i+1]) {
				return
			}
		}
	}
}

func (j *redisHistory) applyToLog(name, key string, words []string, taken map[string]map[string]*admission) {
	book := j.logs[key]
	if book == nil {
		book = make(logBook)
		j.logs[key], j.seen[key] = book, true
	}
	switch name {
	case "ZADD":
		for score, member := range scored(words) {
			if _, there := book[member]; there {
				continue
			}
			book[member] = score
			id := j.idOf(member)
			if taken[key] == nil {
				taken[key] = make(map[string]*admission)
			}
			a := taken[key][id]
			if a == nil {
				a = &admission{ID: id, At: score}
				taken[key][id] = a
				if key == rootLog {
					j.endReturns(score)
					j.latest = max(j.latest, score)
					j.admissions = append(j.admissions, a)
					j.root[id] = a
				}
			}
			a.Slots++
		}
	case "ZREM":
		for _, member := range words {
			delete(book, member)
			if key == rootLog {
				j.giveBack(j.idOf(member))
			}
		}
	case "ZREMRANGEBYRANK":
		if err := removeRanks(book, words); err != nil {
			j.faults = append(j.faults, fmt.Sprintf("%s was trimmed: %v", key, err))
		}
	case "DEL", "UNLINK":
		delete(j.logs, key)
	}
}

// endReturns sets the latest time of the returns since the latest admission.
func (j *redisHistory) endReturns(at int64) {
	for _, a := range j.returns {
		a.Upto = max(at, a.From)
	}
	j.returns = j.returns[:0]
}

// compare checks all or nothing: each admission in another log is in the global log, with the same time and slots.
func (j *redisHistory) compare(taken map[string]map[string]*admission) {
	for key, admissions := range taken {
		for id, a := range admissions {
			if root := taken[rootLog][id]; root == nil || root.At != a.At || root.Slots != a.Slots {
				j.faults = append(j.faults, fmt.Sprintf("%s took %d slots of %s at %d, but of the global log: %v", id, a.Slots, key, a.At, root))
			}
		}
	}
}

// applyToInFlight applies a write to the slots of deliveries under way.
func (j *redisHistory) applyToInFlight(name string, words []string) {
	switch name {
	case "ZADD":
		for score, member := range scored(words) {
			now := score - max(inFlightFor, ackWait).Microseconds()
			there := j.inFlight[member] > now
			j.inFlight[member] = score
			used := 0
			for _, back := range j.inFlight {
				if back > now {
					used++
				}
			}
			if !there && used > inFlightCount {
				j.overInUse = append(j.overInUse, fmt.Sprintf("%q made %d deliveries under way at %d", member, used, now))
			}
		}
	case "ZREM":
		for _, member := range words {
			delete(j.inFlight, member)
		}
	case "ZREMRANGEBYRANK":
		if err := removeRanks(j.inFlight, words); err != nil {
			j.faults = append(j.faults, fmt.Sprintf("the deliveries under way were trimmed: %v", err))
		}
	}
}

// removeRanks removes the members of a sorted set between two ranks.
func removeRanks(set map[string]int64, words []string) error {
	first, err := strconv.Atoi(words[0])
	last, err2 := strconv.Atoi(words[1])
	switch {
	case err != nil || err2 != nil || first < 0 || last < 0:
		return fmt.Errorf("from rank %q to %q", words[0], words[1])
	case first > last:
		return nil
	}
	members := slices.SortedFunc(maps.Keys(set), func(a, b string) int { return cmp.Or(cmp.Compare(set[a], set[b]), cmp.Compare(a, b)) })
	for _, member := range members[min(first, len(members)):min(last+1, len(members))] {
		delete(set, member)
	}
	return nil
}

// events returns the admissions for package oracle.
func (j *redisHistory) events(categoryOf func(id string) string) []oracle.Event {
	var events []oracle.Event
	for i, a := range j.admissions {
		e := oracle.Event{ID: a.ID, Category: categoryOf(a.ID), Cost: a.Slots, At: a.At, Call: i, Admitted: true}
		if a.Returned {
			e.Returned = oracle.Span{From: a.From, Upto: a.Upto}
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b oracle.Event) int { return int(a.At - b.At) })
	return events
}
