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

// newestOf returns the newest change of each key up to a revision. If a key has only forged messages, as many as the bucket keeps, they may
// have pushed out a change. Then the override is lost, unless every revision is still stored.
func newestOf(changes []Change, upto uint64, limit int) map[string]Change {
	newest := make(map[string]Change)
	forged := make(map[string]int) // messages in a row, by key
	stored := make(map[string]int) // messages, by key
	for _, c := range changes {
		if c.Revision > upto {
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
	complete := len(changes) > 0 && changes[len(changes)-1].Revision == uint64(len(changes))
	for key, n := range forged {
		if n >= limit && n == stored[key] && !complete {
			lost := newest[key]
			lost.Deleted, lost.Lost = false, true
			newest[key] = lost
		}
	}
	return newest
}

// newest returns the newest change of each key that the bucket held.
func (r *reading) newest() map[string]Change {
	return newestOf(r.stored, r.revision, int(r.info.Config.MaxMsgsPerSubject))
}

// remember replaces lost overrides by the overrides that the watcher has applied before from this bucket.
func (s *state) remember(applied *applied) {
	if applied == nil || applied.Generation != s.generation {
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

// again returns the change that restores an overwritten change.
func (c Change) again() Change {
	by := strings.TrimPrefix(strings.TrimSuffix(c.By, restored), ", ")
	by = strings.TrimSuffix(by, ", ")
	if by != "" {
		by += ", "
	}
	return Change{Name: c.Name, Value: c.Value, Deleted: c.Deleted, Until: c.Until, Then: c.Then, By: by + restored, Muting: c.Muting, stored: stored{key: c.stored.key}}
}
