package limits

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Pointless is a limit that never denies an event: whenever it is full, a limit above it is full too.
type Pointless struct {
	Level string
	Limit Limit
	Above string // path of the limit above; LevelGlobal for the global limit
	Bound Limit  // that limit
}

// String is a sentence without a period.
func (p Pointless) String() string {
	return fmt.Sprintf("%s of %s never denies anything: %s above it allows no more than %s", p.Limit, p.Level, p.Above, p.Bound)
}

// Pointless lists the sliding logs that never deny an event because of a sliding log above them, in the order of the levels.
func (t *Tree) Pointless() []Pointless {
	var pointless []Pointless
	for _, level := range t.Levels() {
		for _, limit := range level.Limits {
			if p, found := t.boundAbove(level.Level, limit); found {
				pointless = append(pointless, p)
			}
		}
	}
	return pointless
}

// boundAbove finds a log on the way to every path of a level that allows no more in the time of a limit than the limit does: its count for
// each of its windows that cover one window of the limit. The log above counts every event that the limit counts. Where the limit is
// full, each of these windows is full too, and so is the newest.
func (t *Tree) boundAbove(level string, limit Limit) (Pointless, bool) {
	if level == LevelGlobal || !limit.Description().Exact {
		return Pointless{}, false
	}
	path, ofKey := strings.CutSuffix(level, eachKey) // the log of the path counts the events of all keys
	for _, above := range t.Path(commonPath(path)) {
		if above.Path == path && !ofKey {
			continue
		}
		for _, bound := range above.Limits {
			windows := int64((limit.Window + bound.Window - 1) / bound.Window)
			if bound.Description().Exact && bound.Count*windows <= limit.Count {
				return Pointless{Level: level, Limit: limit, Above: cmp.Or(above.Path, LevelGlobal), Bound: bound}, true
			}
		}
	}
	return Pointless{}, false
}

// commonPath is the deepest path at or above every path of a level, "" for the root. LevelCategory has the root alone in common.
func commonPath(level string) string {
	if level == LevelCategory {
		return ""
	}
	common := ""
	for prefix := range event.Prefixes(level) {
		if strings.Contains(prefix, "*") {
			break
		}
		common = prefix
	}
	return common
}
