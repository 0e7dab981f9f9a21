package summary

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// restOfGroup ends the path of an entry that counts the drops of a first-level category which have no entry of their own.
const restOfGroup = ".>"

// decodeClaim reads the reply of claim_digest.lua.
func decodeClaim(channel string, reply []any) (*Digest, int64, error) {
	if len(reply) != 3 {
		return nil, 0, fmt.Errorf("%w: %d values of a digest", script.ErrReply, len(reply))
	}
	now, hasTime := reply[0].(int64)
	text, hasText := reply[1].(string)
	inDoubt, hasDoubt := reply[2].(int64)
	if !hasTime || !hasText || !hasDoubt {
		return nil, 0, fmt.Errorf("%w: a digest is %T, %T, %T", script.ErrReply, reply[0], reply[1], reply[2])
	}
	if text == "" {
		return nil, inDoubt, nil
	}
	digest, err := decodeDigest(channel, text, time.UnixMicro(now))
	return digest, inDoubt, err
}

// decodeDigest reads a claimed digest as it is kept, see lib/digests.lua.
func decodeDigest(channel, text string, now time.Time) (*Digest, error) {
	malformed := fmt.Errorf("%w: the digest for %q is %q", script.ErrReply, channel, text)
	lines := strings.Split(text, "\n")
	if len(lines) < 2 {
		return nil, malformed
	}
	claim := strings.Split(lines[0], " ")
	numbers, err := parseNumbers(lines[1], 9)
	if err != nil || len(claim) != 4 {
		return nil, malformed
	}
	failures, err := strconv.Atoi(claim[3])
	if err != nil {
		return nil, malformed
	}
	digest := Digest{
		Channel: channel, Claim: claim[0], Failures: failures,
		Dropped: numbers[0], First: time.UnixMicro(numbers[1]), Last: time.UnixMicro(numbers[2]), Unpaired: numbers[3],
		MoreAtLeast: numbers[5] == 1, AtLeast: numbers[7] == 1, Doubtful: numbers[8],
	}
	if numbers[6] > 0 {
		digest.Since = time.UnixMicro(numbers[6])
	}
	for _, line := range lines[2:] {
		path, err := decodePath(line, now)
		if err != nil {
			return nil, malformed
		}
		digest.Paths = append(digest.Paths, path)
	}
	digest.countOthers(int(numbers[4]))
	return &digest, nil
}

// countOthers counts what is not among the digest's paths, of so many that were counted by name.
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
		d.MorePaths = 1 // one that was not counted by name, at least
	}
}

// decodePath reads an entry.
func decodePath(line string, now time.Time) (Path, error) {
	values := strings.Split(strings.TrimSuffix(line, "\t"), "\t")
	if len(values) < 4 || len(values)%2 != 0 {
		return Path{}, script.ErrReply
	}
	count, countErr := strconv.ParseInt(values[1], 10, 64)
	opens, opensErr := strconv.ParseInt(values[2], 10, 64)
	path := Path{Dropped: count, Title: values[3]}
	path.Path, path.Rest = strings.CutSuffix(values[0], restOfGroup)
	if at := time.UnixMicro(opens); at.After(now) {
		path.Opens = at
	}
	faults := []error{countErr, opensErr}
	for level := range slices.Chunk(values[4:], 2) {
		count, err := strconv.ParseInt(level[1], 10, 64)
		faults = append(faults, err)
		path.Reasons = append(path.Reasons, Reason{Level: level[0], Dropped: count})
	}
	slices.SortStableFunc(path.Reasons, func(a, b Reason) int {
		if byCount := b.Dropped - a.Dropped; byCount != 0 {
			return int(byCount)
		}
		return strings.Compare(a.Level, b.Level)
	})
	return path, errors.Join(faults...)
}

func parseNumbers(line string, count int) ([]int64, error) {
	texts := strings.Split(line, " ")
	if len(texts) != count {
		return nil, script.ErrReply
	}
	numbers := make([]int64, count)
	for i, text := range texts {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers[i] = number
	}
	return numbers, nil
}
