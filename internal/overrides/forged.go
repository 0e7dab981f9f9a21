package overrides

import (
	"slices"
	"strings"
)

// A forged message lacks the header that workers, operators and NATS' key-value clients set: see package trusted. It changes no override.
// But it takes a revision, and it pushes an older change of its key out of the bucket.

// overwrittenBy returns the change after a forged message has replaced it. The zero value of c means that the key had no change.
func (c Change) overwrittenBy(forged Change) Change {
	if c.Revision == 0 {
		c = Change{Deleted: true}
	}
	c.Name, c.stored.key, c.stored.foreign = forged.Name, forged.stored.key, forged.stored.foreign
	c.Revision, c.stored.overwritten = forged.Revision, true
	return c
}

// after returns the newest change of each key after a revision. If a key has only forged messages, and as many as the bucket keeps, they
// may have pushed out a change. Then the override is lost, unless every revision is still stored.
func (h history) after(revision uint64) map[string]Change {
	newest := make(map[string]Change)
	forged := make(map[string]int) // messages in a row, by key
	stored := make(map[string]int) // messages, by key
	for _, c := range h.changes {
		if c.Revision > revision {
			continue
		}
		stored[c.stored.key]++
		if !c.stored.forged {
			newest[c.stored.key], forged[c.stored.key] = c, 0
			continue
		}
		newest[c.stored.key] = newest[c.stored.key].overwrittenBy(c)
		forged[c.stored.key]++
	}
	complete := len(h.changes) > 0 && h.changes[len(h.changes)-1].Revision == uint64(len(h.changes))
	for key, n := range forged {
		if n >= h.limit && n == stored[key] && !complete {
			lost := newest[key]
			lost.Deleted, lost.Lost = false, true
			newest[key] = lost
		}
	}
	return newest
}

// remember replaces lost overrides by the overrides that the watcher has applied before from this bucket.
func (s *state) remember(applied *Snapshot) {
	if applied == nil || applied.Generation != s.Generation {
		return
	}
	for name, lost := range s.entries {
		if !lost.Lost {
			continue
		}
		known := Change{}
		for _, entry := range slices.Concat(applied.Entries, applied.Mutes) {
			if entry.Name == name {
				known = entry
			}
		}
		s.entries[name] = known.overwrittenBy(lost)
	}
}

// restored marks the author of a change that a watcher stores again.
const restored = "restored"

func (c Change) again() Change {
	by := strings.TrimPrefix(strings.TrimSuffix(c.By, restored), ", ")
	by = strings.TrimSuffix(by, ", ")
	if by != "" {
		by += ", "
	}
	return Change{Name: c.Name, Value: c.Value, Deleted: c.Deleted, Until: c.Until, Then: c.Then, By: by + restored, Muting: c.Muting, stored: stored{key: c.stored.key}}
}
