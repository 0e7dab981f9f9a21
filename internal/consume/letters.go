package consume

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// letters keeps the dead-letter stream within its bounds, so that each first level of the categories pushes out its own letters. It
// may be used from several goroutines at once.
//
// On one subject the server has newer letters push out the oldest. Where the bytes of the stream run out, the server refuses a letter,
// since it would push out the oldest of anybody. Then the first level with the most bytes loses its oldest letters. A first level
// within its share, the stream's bytes by the number of first levels, loses none.
type letters struct {
	js      jetstream.JetStream
	names   Names
	logger  *slog.Logger
	making  sync.Mutex // held by who makes room
	mu      sync.Mutex
	made    int               // how often room was made
	owed    int               // letters that were pushed out, and that no stored letter counts in its header yet
	stocked map[string]*stock // by subject
	silent  time.Time         // until then the stream is not asked, since it did not answer
}

func newLetters(js jetstream.JetStream, names Names, logger *slog.Logger) *letters {
	return &letters{js: js, names: names, logger: logger, stocked: make(map[string]*stock)}
}

// stock is what is known of the letters on a subject.
type stock struct {
	count    int64         // letters that are there, without those under way
	most     int64         // how many the server keeps; 0 or less: any number
	asked    time.Time     // when the server was asked; zero: it has to be asked
	underWay int64         // letters that are being stored now; 1 while the server is asked
	changed  chan struct{} // closed when one of them is under way no more
}

const (
	stockKnown   = time.Second // how long a stock is believed
	stockSilence = time.Minute // how long the stream is left alone after it did not answer
	mostStocks   = 10_000
)

// begin announces a letter that is about to be stored, and returns how many older letters it pushes out: none or one. The caller calls
// stored afterwards. The result is exact while no other worker stores letters on the subject and nobody takes any out: a letter that may
// or may not be the first to push out another waits until the letters before it are stored. An unknown stock counts as none.
func (l *letters) begin(ctx context.Context, subject string) (pushesOut int, err error) {
	for {
		l.mu.Lock()
		s := l.stockOf(subject)
		isKnown := time.Since(s.asked) <= stockKnown || time.Now().Before(l.silent)
		switch {
		case isKnown && (s.most <= 0 || s.count+s.underWay < s.most):
			s.underWay++
			l.mu.Unlock()
			return 0, nil
		case isKnown && s.count >= s.most:
			s.underWay++
			l.mu.Unlock()
			return 1, nil
		case s.underWay == 0:
			s.underWay++
			l.mu.Unlock()
			l.ask(ctx, subject, s)
		default:
			changed := s.changed
			l.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
	}
}

// stockOf returns the stock of a subject. The lock is held.
func (l *letters) stockOf(subject string) *stock {
	s := l.stocked[subject]
	if s == nil {
		if len(l.stocked) >= mostStocks {
			maps.DeleteFunc(l.stocked, func(_ string, s *stock) bool { return s.underWay == 0 })
		}
		s = &stock{changed: make(chan struct{})}
		l.stocked[subject] = s
	}
	return s
}

// ask looks at how many letters there are on a subject of which none is under way.
func (l *letters) ask(ctx context.Context, subject string, s *stock) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	info, err := streamInfo(ctx, l.js, l.names.DeadLetterStream, subject)
	l.mu.Lock()
	defer l.mu.Unlock()
	s.ended()
	if err != nil {
		l.silent = time.Now().Add(stockSilence)
		return
	}
	s.count = int64(info.State.Subjects[subject]) //nolint:gosec // a count of messages on a disk
	s.most, s.asked = info.Config.MaxMsgsPerSubject, time.Now()
}

// ended notes that a letter is under way no more. The lock is held.
func (s *stock) ended() {
	s.underWay--
	close(s.changed)
	s.changed = make(chan struct{})
}

// stored notes what became of a letter that was announced: whether the server stored it, or the error.
func (l *letters) stored(subject string, isNew bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stockOf(subject)
	s.ended()
	_, isRefusal := errors.AsType[*jetstream.APIError](err)
	switch {
	case err != nil && !isRefusal: // the server may have stored it
		s.asked = time.Time{}
	case isNew && (s.most <= 0 || s.count < s.most):
		s.count++
	}
}

// owe notes letters that were pushed out, for the header of the next letter that is stored.
func (l *letters) owe(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed += n
}

// takeOwed returns what was noted. What the caller stores no letter for it notes again.
func (l *letters) takeOwed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	owed := l.owed
	l.owed = 0
	return owed
}

// roomTimeout bounds the making of room, in which all letters are looked at.
const roomTimeout = time.Minute

// rooms is how often room has been made.
func (l *letters) rooms() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made
}

// makeRoom takes out older letters until one of a size fits, and tells how many. It does nothing if room was made after the caller had
// read rooms.
func (l *letters) makeRoom(ctx context.Context, first string, size, rooms int) (gone int, err error) {
	l.making.Lock()
	defer l.making.Unlock()
	if l.rooms() > rooms {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	stream, err := l.js.Stream(ctx, l.names.DeadLetterStream)
	if err != nil {
		return 0, fmt.Errorf("asking about stream %q: %w", l.names.DeadLetterStream, err)
	}
	found, err := l.pile(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("looking at the letters of stream %q: %w", l.names.DeadLetterStream, err)
	}
	info := stream.CachedInfo()
	held, most := int(info.State.Bytes), int(info.Config.MaxBytes) //nolint:gosec // a number of bytes on a disk
	for subject, last := range found.oldest(first, size, held+size-most, most) {
		n, err := l.purge(ctx, subject, last)
		gone += n
		if err != nil {
			return gone, err
		}
	}
	l.mu.Lock()
	l.made++
	for _, s := range l.stocked {
		s.asked = time.Time{}
	}
	l.mu.Unlock()
	l.logger.Warn("the stream of dead letters is full, so older ones were pushed out", "stream", l.names.DeadLetterStream, "letters", gone)
	return gone, nil
}

// lying is a letter in the stream.
type lying struct {
	subject  string
	sequence uint64
	size     int
}

// piles are the letters by the first level of their category, the oldest first.
type piles map[string][]lying

// pile looks at all letters, without their bodies.
func (l *letters) pile(ctx context.Context, stream jetstream.Stream) (piles, error) {
	found := make(piles)
	err := l.each(ctx, stream, 1, func(m jetstream.Msg, sequence uint64) error {
		_, first, _ := strings.Cut(strings.TrimPrefix(m.Subject(), l.names.DeadLetterSubject+"."), ".")
		body, _ := strconv.Atoi(m.Headers().Get(nats.MsgSize)) // the headers alone were asked for
		size := storedSize(m.Subject(), m.Headers(), body)
		found[first] = append(found[first], lying{subject: m.Subject(), sequence: sequence, size: size})
		return nil
	})
	return found, err
}

// each hands over the letters from a sequence on, without their bodies.
func (l *letters) each(ctx context.Context, stream jetstream.Stream, from uint64, take func(m jetstream.Msg, sequence uint64) error) error {
	// It acknowledges nothing, is kept by one server in its memory, and ends by itself.
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, FilterSubject: l.names.DeadLetterSubject + ".*.*", HeadersOnly: true,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		InactiveThreshold: apiTimeout, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return err
	}
	for pending := consumer.CachedInfo().NumPending; pending > 0; {
		batch, err := consumer.Fetch(int(min(pileAtOnce, pending)), jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		pending = 0
		var failed error
		for m := range batch.Messages() { // to the end, so that nothing waits for the others
			meta, err := m.Metadata()
			if err == nil && failed == nil {
				pending = meta.NumPending
				err = take(m, meta.Sequence.Stream)
			}
			failed = cmp.Or(failed, err)
		}
		if err := cmp.Or(failed, batch.Error()); err != nil {
			return err
		}
	}
	return nil
}

const pileAtOnce = 1000

// storedSize is about what a message takes in a stream, and not less.
func storedSize(subject string, header nats.Header, body int) int {
	const around = 64 // what the server adds
	size := around + len(subject) + body
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// Room is made for more than the one letter, so that all letters are looked at only now and then: up to this part of the
// stream, and of what the first level has that stores the letter.
const (
	spareShare = 16
	ownShare   = 8
)

// oldest picks the letters that go so that a new one fits. It returns the last of them on each subject.
func (p piles) oldest(own string, size, missing, most int) map[string]uint64 {
	bytes := map[string]int{own: size}
	for first, pile := range p {
		for _, letter := range pile {
			bytes[first] += letter.size
		}
	}
	share := most / len(bytes)
	last := make(map[string]uint64)
	freed := 0
	take := func(first string, wanted int) {
		for freed < wanted && len(p[first]) > 0 {
			oldest := p[first][0]
			p[first] = p[first][1:]
			last[oldest.subject] = oldest.sequence
			freed += oldest.size
			bytes[first] -= oldest.size
		}
		if len(p[first]) == 0 {
			delete(bytes, first)
		}
	}

	victim := heaviest(bytes)
	more := bytes[victim] - share
	if victim == own {
		more = max(more, bytes[own]/ownShare)
	}
	take(victim, max(missing, min(more, most/spareShare)))
	for freed < missing && len(bytes) > 0 {
		take(heaviest(bytes), freed+1)
	}
	return last
}

// heaviest is the one with the most bytes.
func heaviest(bytes map[string]int) string {
	most := ""
	for first, n := range bytes {
		if most == "" || n > bytes[most] || n == bytes[most] && first < most {
			most = first
		}
	}
	return most
}

// purge takes out the letters on a subject up to a sequence, and tells how many those were.
func (l *letters) purge(ctx context.Context, subject string, last uint64) (int, error) {
	request, err := json.Marshal(map[string]any{"filter": subject, "seq": last + 1})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	api := "$JS.API.STREAM.PURGE." + l.names.DeadLetterStream
	var result struct {
		Purged int                 `json:"purged"`
		Error  *jetstream.APIError `json:"error"`
	}
	answer, err := l.js.Conn().RequestWithContext(ctx, api, request)
	if err == nil {
		err = json.Unmarshal(answer.Data, &result)
	}
	if err == nil && result.Error != nil {
		err = result.Error
	}
	if err != nil {
		return 0, fmt.Errorf("purging %s: %w", subject, err)
	}
	return result.Purged, nil
}
