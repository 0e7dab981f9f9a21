package slack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// lookUpPause is the time between unsuccessful look-ups of handles.
const lookUpPause = time.Minute

var (
	mentionedUser  = regexp.MustCompile(`^[UW][A-Z0-9]{2,}$`)
	mentionedGroup = regexp.MustCompile(`^S[A-Z0-9]{2,}$`)
)

var errNoUserGroup = errors.New("no user group has this handle")

// mentionMarkup returns Slack's markup for a mention. It returns "" for the handle of a user group: its markup needs its ID.
func mentionMarkup(name string) string {
	switch {
	case name == "here", name == "channel", name == "everyone":
		return "<!" + name + ">"
	case mentionedUser.MatchString(name):
		return "<@" + name + ">"
	case mentionedGroup.MatchString(name):
		return userGroupMarkup(name)
	}
	return ""
}

func userGroupMarkup(id string) string { return "<!subteam^" + id + ">" }

// mentionsOf returns the mentions of a category, joined by blanks. It leaves out a handle if group returns "".
func mentionsOf(table event.Table[[]string], category string, group func(handle string) string) string {
	entry, _ := table.Nearest(category)
	var found []string
	for _, name := range entry.Value {
		markup := mentionMarkup(name)
		if markup == "" {
			markup = group(name)
		}
		if markup != "" {
			found = append(found, markup)
		}
	}
	return strings.Join(found, " ")
}

// MentionPreview returns the mentions of a category, as [Sink.Mention] does. It shows the handle of a user group, since only
// Slack knows its ID.
func MentionPreview(table event.Table[[]string], category string) string {
	return mentionsOf(table, category, func(handle string) string { return "@" + handle })
}

// mentions resolves mentions. It looks handles up when they are first needed.
type mentions struct {
	table  event.Table[[]string] // of valid names
	list   func(context.Context) (map[string]string, *sink.Error)
	failed func(handle string, err error)
	now    func() time.Time

	logged  sync.Map   // handles that were reported to failed
	listing sync.Mutex // held during a look-up, so that concurrent deliveries of unknown handles share one request

	mu     sync.Mutex
	groups map[string]string
	fault  error     // of the last look-up
	again  time.Time // no look-up before then
}

// handles returns the handles in the table, each once.
func (m *mentions) handles() (handles []string) {
	for _, entry := range m.table.Entries() {
		for _, name := range entry.Value {
			if mentionMarkup(name) == "" && !slices.Contains(handles, name) {
				handles = append(handles, name)
			}
		}
	}
	return handles
}

// of returns the mentions of a category, joined by blanks.
func (m *mentions) of(category string) string { return mentionsOf(m.table, category, m.userGroup) }

// userGroup returns the markup for a handle; "" if it cannot be found.
func (m *mentions) userGroup(handle string) string {
	id, err := m.lookUp(handle)
	if err == nil {
		return userGroupMarkup(id)
	}
	if _, again := m.logged.LoadOrStore(handle, true); !again {
		m.failed(handle, err)
	}
	return ""
}

// lookUp finds the ID of a handle. IDs never change, so it looks up each handle only until it is found, and a known handle waits for no look-up.
func (m *mentions) lookUp(handle string) (string, error) {
	id, mayList, err := m.known(handle)
	if !mayList {
		return id, err
	}
	m.listing.Lock()
	defer m.listing.Unlock()
	if _, mayList, _ = m.known(handle); mayList { // another delivery may have listed meanwhile
		groups, failure := m.list(context.Background())
		m.learn(handle, groups, failure)
	}
	id, _, err = m.known(handle)
	return id, err
}

// known returns the ID of a handle as of the last look-up. mayList is true if the ID is not known and the time for another look-up has come.
func (m *mentions) known(handle string) (id string, mayList bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id = m.groups[handle]; id != "" {
		return id, false, nil
	}
	return "", !m.now().Before(m.again), cmp.Or(m.fault, errNoUserGroup)
}

// learn records the result of a look-up for a handle. Slack bans an app that ignores Retry-After.
func (m *mentions) learn(handle string, groups map[string]string, failure *sink.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = nil
	pause := lookUpPause
	if failure == nil {
		m.groups = groups
	} else {
		m.fault = fmt.Errorf("list the user groups: %w", failure)
		pause = max(pause, failure.RetryAfter)
	}
	if m.groups[handle] == "" {
		m.again = m.now().Add(pause)
	}
}
