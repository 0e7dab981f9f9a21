package throttle

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fullLimits logs when limits become full, and when they have slots again. Per minute, it writes at most one line of each kind about a
// level, however many paths the level has. The next line counts the limits that got no line of their own.
type fullLimits struct {
	logger *slog.Logger

	mu     sync.Mutex
	full   byPath[*fullNode]
	levels map[string]*levelLines // by level, from its first line on
}

// fullNode is a node with a full limit, as of the latest denial.
type fullNode struct {
	limits.Node
	limit  limits.Limit
	since  time.Time
	opens  time.Time // the next slot
	denied int64     // since then
	told   bool      // the log has a line about it
}

// levelLines records what was logged about the limits of one level.
type levelLines struct {
	full, opened time.Time // when the latest line of that kind was written
	untold       opened    // not logged yet
}

// opened sums up limits that are no longer full.
type opened struct {
	limits int
	denied int64    // while they were full
	one    fullNode // the limit with the most denials
}

func (o *opened) add(node *fullNode) {
	o.limits++
	o.denied += node.denied
	if o.limits == 1 || node.denied > o.one.denied {
		o.one = *node
	}
}

const (
	fullLimitsEvery = time.Second // how often due lines are logged
	levelLineEvery  = time.Minute // between two lines of one kind about a level
)

func newFullLimits(logger *slog.Logger) *fullLimits {
	return &fullLimits{logger: logger, full: newByPath[*fullNode](), levels: make(map[string]*levelLines)}
}

// denied records a denial by Redis or by the local store.
func (f *fullLimits) denied(d *store.Decision, asked time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	node := f.full.values[d.Node.Path]
	if node == nil {
		node = &fullNode{Node: d.Node, since: asked}
		if !f.full.put(d.Node.Path, node) {
			return
		}
	}
	node.limit, node.opens = d.Limit, asked.Add(d.Wait)
	node.denied++
}

// deniedAgain records a denial from the deny cache.
func (f *fullLimits) deniedAgain(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if node := f.full.values[path]; node != nil {
		node.denied++
	}
}

// opensAt returns when the next slot of a path opens, as of the latest denial. It returns the zero time if no limit of the path is known to
// be full.
func (f *fullLimits) opensAt(path string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if node := f.full.values[path]; node != nil {
		return node.opens
	}
	return time.Time{}
}

// denies reports whether the latest denial of a path was by this limit.
func (f *fullLimits) denies(use limits.Use) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	node := f.full.values[use.Path]
	return node != nil && node.Level == use.Level && node.limit.String() == use.Limit
}

// adopt logs and forgets full limits that are no longer in force.
func (f *fullLimits) adopt(tree *limits.Tree) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := make(map[string]*opened)
	for path, node := range f.full.values {
		inForce := slices.ContainsFunc(tree.Path(path), func(n limits.Node) bool {
			return n.Path == path && n.Level == node.Level && slices.Contains(n.Limits, node.limit)
		})
		if inForce {
			continue
		}
		f.full.remove(path)
		changed[node.Level] = cmp.Or(changed[node.Level], new(opened))
		changed[node.Level].add(node)
	}
	for _, limit := range changed {
		f.logger.Info("limit was changed while it was full", limit.attributes(time.Now())...)
	}
}

// tell writes the lines that are due.
func (f *fullLimits) tell(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	untold := make(map[string][]*fullNode) // by level
	for path, node := range f.full.values {
		if !now.Before(node.opens) {
			f.full.remove(path)
			f.linesOf(node.Level).untold.add(node)
		} else if !node.told {
			untold[node.Level] = append(untold[node.Level], node)
		}
	}
	for level, nodes := range untold {
		if lines := f.linesOf(level); now.Sub(lines.full) >= levelLineEvery {
			f.tellFull(lines, nodes, now)
		}
	}
	for level, lines := range f.levels {
		// If another limit of the level is full but not logged yet, the last line must not say that a limit has slots again.
		if lines.untold.limits > 0 && len(untold[level]) == 0 && now.Sub(lines.opened) >= levelLineEvery {
			f.logger.Info("limit has slots again", lines.untold.attributes(now)...)
			lines.opened, lines.untold = now, opened{}
		}
	}
}

func (f *fullLimits) linesOf(level string) *levelLines {
	f.levels[level] = cmp.Or(f.levels[level], new(levelLines))
	return f.levels[level]
}

// tellFull writes the line about limits of one level that have become full. It names the limit that became full first.
func (f *fullLimits) tellFull(lines *levelLines, nodes []*fullNode, now time.Time) {
	for _, node := range nodes {
		node.told = true
	}
	first := slices.MinFunc(nodes, func(a, b *fullNode) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.Path, b.Path))
	})
	attributes := append(first.attributes(), "next_slot", first.opens.Sub(now).Round(time.Millisecond).String())
	if len(nodes) > 1 {
		attributes = append(attributes, "limits", len(nodes))
	}
	if lines.untold.limits > 0 {
		attributes = append(attributes, "opened_meanwhile", lines.untold.limits, "denied_meanwhile", lines.untold.denied)
	}
	f.logger.Info("limit is full", attributes...)
	lines.full, lines.untold = now, opened{}
}

// attributes returns the attributes that name the limit. The level is called limit_level, because a log line has its own level.
func (n *fullNode) attributes() []any {
	return []any{"limit_level", n.Level, "path", cmp.Or(n.Path, limits.LevelGlobal), "limit", n.limit.String()}
}

func (o *opened) attributes(now time.Time) []any {
	attributes := append(o.one.attributes(), "full_for", now.Sub(o.one.since).Round(time.Second).String(), "denied", o.denied)
	if o.limits > 1 {
		attributes = append(attributes, "limits", o.limits)
	}
	return attributes
}
