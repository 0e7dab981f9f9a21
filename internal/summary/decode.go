package summary

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// restOfGroup is the suffix of the path of an entry with the remaining drops of a first-level category.
const restOfGroup = ".>"

func decodeClaim(channel string, reply []any) (claimed Claimed, err error) {
	if len(reply) != 4 {
		return Claimed{}, fmt.Errorf("%w: %d values of a digest", script.ErrReply, len(reply))
	}
	now, hasTime := reply[0].(int64)
	text, hasText := reply[1].(string)
	since, hasSince := reply[2].(int64)
	keys, hasKeys := reply[3].(string)
	if !hasTime || !hasText || !hasSince || !hasKeys {
		return Claimed{}, fmt.Errorf("%w: a digest is %T, %T, %T, %T", script.ErrReply, reply[0], reply[1], reply[2], reply[3])
	}
	if text == "" {
		return Claimed{}, nil
	}
	if claimed.Digest, err = decodeDigest(channel, text, time.UnixMicro(now)); err == nil {
		err = claimed.Digest.ofMute(channel, keys)
	}
	if since > 0 {
		claimed.InDoubt, claimed.Age = true, time.Duration(now-since)*time.Microsecond
	}
	return claimed, err
}

// decodeDigest reads a claimed digest in the stored form of lib/digests.lua.
func decodeDigest(channel, text string, now time.Time) (*Digest, error) {
	malformed := fmt.Errorf("%w: the digest for %q is %q", script.ErrReply, channel, text)
	lines := strings.Split(text, "\n")
	if len(lines) < 3 {
		return nil, malformed
	}
	digest := Digest{Channel: channel}
	var (
		state                                string
		until, first, last, partial, atLeast int64
		since, named                         int64
	)
	_, claimErr := fmt.Sscan(lines[0], &digest.Claim, &state, &until, &digest.Failures)
	_, countsErr := fmt.Sscan(lines[1],
		&digest.Dropped, &first, &last, &digest.Unpaired, &named, &partial, &since, &atLeast, &digest.Doubtful,
		&digest.FromRevision, &digest.BeforeRevision)
	if claimErr != nil || countsErr != nil {
		return nil, malformed
	}
	digest.First, digest.Last = time.UnixMicro(first), time.UnixMicro(last)
	digest.MoreAtLeast, digest.AtLeast = partial == 1, atLeast == 1
	if since > 0 {
		digest.Since = time.UnixMicro(since)
	}
	rounds, err := decodeRounds(lines[2])
	if err != nil {
		return nil, malformed
	}
	digest.Rounds = rounds
	for _, line := range lines[3:] {
		path, err := decodePath(line, now)
		if err != nil {
			return nil, malformed
		}
		digest.Paths = append(digest.Paths, path)
	}
	digest.countOthers(int(named))
	return &digest, nil
}

func decodeRounds(line string) (rounds []Rounds, err error) {
	for words := range slices.Chunk(strings.Fields(line), 3) {
		var of Rounds
		if _, err := fmt.Sscan(strings.Join(words, " "), &of.Instance, &of.First, &of.Last); err != nil {
			return nil, err
		}
		rounds = append(rounds, of)
	}
	return rounds, nil
}

// countOthers counts the paths and drops that are not among the digest's paths. named is the number of paths counted by name.
func (d *Digest) countOthers(named int) {
	d.MorePaths, d.MoreDropped = named, d.Dropped-d.Unpaired
	for _, path := range d.Paths {
		d.MoreDropped -= path.Dropped
		if !path.Rest {
			d.MorePaths--
		}
	}
	d.MorePaths = max(0, d.MorePaths)
	if d.MorePaths == 0 && d.MoreDropped > 0 {
		d.MorePaths = 1 // at least one path that was not counted by name
	}
}

func decodePath(line string, now time.Time) (Path, error) {
	values := strings.Split(strings.TrimSuffix(line, "\t"), "\t")
	if len(values) < 4 || len(values)%2 != 0 {
		return Path{}, script.ErrReply
	}
	var faults error
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		faults = errors.Join(faults, err)
		return n
	}
	path := Path{Dropped: number(values[1]), Title: values[3]}
	path.Path, path.Rest = strings.CutSuffix(values[0], restOfGroup)
	if opens := time.UnixMicro(number(values[2])); opens.After(now) {
		path.Opens = opens
	}
	for level := range slices.Chunk(values[4:], 2) {
		path.Reasons = append(path.Reasons, Reason{Level: level[0], Dropped: number(level[1])})
	}
	slices.SortStableFunc(path.Reasons, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.Dropped, a.Dropped), cmp.Compare(a.Level, b.Level))
	})
	return path, faults
}
