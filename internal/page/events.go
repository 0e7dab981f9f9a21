package page

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// message is the update that a watcher gets each second. It has only the changes.
type message struct {
	At        int64             `json:"at"`                  // milliseconds, by the server's clock
	Whole     bool              `json:"whole,omitempty"`     // the first of a connection: it has everything
	Parts     map[string]string `json:"parts,omitempty"`     // of the page, by name
	News      string            `json:"news"`                // one sentence for screen readers
	Decisions string            `json:"decisions,omitempty"` // rows, the newest first
	Skipped   int               `json:"skipped,omitempty"`   // decisions that arrived too fast to be shown
}

// writeTimeout bounds the sending of one message to a watcher.
const writeTimeout = 10 * time.Second

// serveEvents sends the changes to a watcher, once a second. A HEAD request gets none: no write would ever fail, and end its watching.
func (p *page) serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	watcher := p.hub.join()
	if watcher == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many watch this page", http.StatusServiceUnavailable)
		return
	}
	defer p.hub.leave(watcher)
	w.Header().Set("X-Accel-Buffering", "no") // a proxy passes each message on at once
	controller := http.NewResponseController(w)
	next := message{Whole: true}
	for sent, number, filter := map[string]string{}, 0, filterOf(r); ; next = (message{}) {
		select {
		case <-watcher.wake:
		case <-r.Context().Done():
			return
		case <-p.hub.closed.Done():
			return
		}
		number = p.fill(&next, sent, number, filter)
		_ = controller.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer of a test has none
		if _, err := w.Write(next.encode()); err != nil || controller.Flush() != nil {
			return
		}
	}
}

// fill adds the changes since the sent parts and the decision with the number.
func (p *page) fill(m *message, sent map[string]string, number int, filter string) int {
	newest := p.hub.latest()
	m.At, m.News, m.Parts = time.Now().UnixMilli(), newest.news, make(map[string]string)
	for name, part := range newest.all(filter) {
		text := string(part)
		if old, known := sent[name]; !known || old != text {
			m.Parts[name], sent[name] = text, text
		}
	}
	decisions, last := p.hub.decisions.after(number)
	var rows strings.Builder
	for _, d := range slices.Backward(decisions) {
		rows.WriteString(d.html)
	}
	m.Decisions = rows.String()
	if !m.Whole {
		m.Skipped = last - number - len(decisions)
	}
	return last
}

// encode encodes a message as a server-sent event. JSON has no line breaks.
func (m message) encode() []byte {
	var event bytes.Buffer
	event.WriteString("data: ")
	encoder := json.NewEncoder(&event)
	encoder.SetEscapeHTML(false) // the script parses the JSON; the HTML in it is already escaped
	_ = encoder.Encode(m)        // texts and numbers can be encoded
	event.WriteString("\n")
	return event.Bytes()
}
