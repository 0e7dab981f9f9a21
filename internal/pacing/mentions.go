package pacing

import (
	"sync"
	"time"
)

// mentions decides for this instance alone which events may mention people.
type mentions struct {
	mu     sync.Mutex
	byPath map[string]mentioned
}

type mentioned struct {
	id    string
	until time.Time
}

func (m *mentions) take(now time.Time, path, id string, d time.Duration) mention {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.byPath[path]; now.Before(last.until) {
		if last.id == id {
			return hasMention
		}
		return noMention
	}
	if m.byPath == nil || len(m.byPath) >= maxPauses {
		m.byPath = make(map[string]mentioned)
	}
	m.byPath[path] = mentioned{id: id, until: now.Add(d)}
	return takesMention
}

func (m *mentions) giveBack(path, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byPath[path].id == id {
		delete(m.byPath, path)
	}
}
