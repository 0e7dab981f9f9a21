package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
)

// Finding is the result of one check of [Check].
type Finding struct {
	Subject string
	Note    string // details if nothing is wrong
	Err     error  // the problem and its remedy
	Warning bool   // a worker may work despite Err
}

// Further is what a worker uses beside the streams and consumers of [Names].
type Further struct {
	Channels []string // that the settings name
	Bucket   string   // of live limits
	MaxBody  int      // bytes of the largest event without its headers; 0: not known
}

// Check reports whether a worker with these options could work: whether streams and consumers exist or can be created and are fit for use, how they are
// bounded, whether each subject that the worker publishes to is permitted, and whether producers share the worker's account. It takes no
// event, stores nothing and creates nothing.
func Check(ctx context.Context, o Options, further Further) []Finding {
	js, err := jetstream.New(o.Connection.Conn, jetstream.WithDefaultTimeout(APITimeout))
	if err != nil {
		return []Finding{{Subject: "jetstream", Err: err}}
	}
	names := o.Names
	c := &check{Options: o, js: js, further: further}
	events := about("nats consumer %q of stream %q", names.Consumer, names.Stream)(
		c.consumer(ctx, names.Stream, names.ConsumerConfig(c.AckWait, nil), names.fitConsumer))
	if LacksJetStream(events.Err) { // and so does every other check
		return []Finding{{Subject: "nats jetstream", Err: events.Err}}
	}
	findings := []Finding{
		events,
		about("nats stream %q", names.Stream)(c.stream(ctx, names.StreamConfig(), names.fitStream)),
		about("nats consumer %q of stream %q", names.roomConsumer(), names.RoomStream)(
			c.consumer(ctx, names.RoomStream, names.RoomConsumerConfig(c.AckWait), names.fitRoomConsumer)),
		about("nats stream %q", names.RoomStream)(c.stream(ctx, names.RoomConfig(), names.fitRoom)),
		about("nats stream %q", names.DeadLetterStream)(c.stream(ctx, names.DeadLetterConfig(), func(jetstream.StreamConfig) error { return nil })),
		about("nats events that wait on %q", names.Room().All())(c.stored(ctx, names.RoomStream, names.Room().Queue(room.Part, "check"))),
		about("nats dead letters on %q", names.DeadLetterSubject+".>")(c.stored(ctx, names.DeadLetterStream, names.DeadLetterSubject+".check.check")),
	}
	findings = append(append(findings, c.queues(ctx)...), c.journal(ctx)...)
	findings = append(append(findings, c.replicas(ctx)...), c.permissions(ctx)...)
	return append(append(findings, c.account(ctx)), c.storage(ctx)...)
}

// journal checks whether the journal can be written. A worker also works without it.
func (c *check) journal(ctx context.Context) []Finding {
	names := c.Names.Journal
	if names.Age == 0 {
		return nil
	}
	findings := []Finding{
		about("nats stream %q", names.Stream)(c.stream(ctx, names.Config(), func(jetstream.StreamConfig) error { return nil })),
		about("nats journal on %q", names.All())(c.stored(ctx, names.Stream, names.SubjectOf("check"))),
	}
	for i := range findings {
		findings[i].Warning = findings[i].Err != nil
	}
	return findings
}

// warning is an error that does not keep a worker from working.
type warning struct{ error }

func warn(texts []string) error { return warning{errors.New(strings.Join(texts, "; "))} }

func about(format string, names ...any) func(note string, err error) Finding {
	return func(note string, err error) Finding {
		_, isWarning := errors.AsType[warning](err)
		return Finding{Subject: fmt.Sprintf(format, names...), Note: note, Err: err, Warning: isWarning}
	}
}

type check struct {
	Options
	js      jetstream.JetStream
	further Further
	creates []string // API subjects on which the worker will request what is absent
	single  []string // streams with one replica
}

// absent records a request with which the worker will create what is absent. It returns an error if the worker may not create it.
func (c *check) absent(err error, create string) error {
	if !c.Provision {
		return fmt.Errorf("%w (run notifier provision, or set NOTIFIER_NATS_PROVISION=true)", err)
	}
	c.creates = append(c.creates, create)
	return nil
}

// consumer checks whether a consumer can be used, and how it differs from the settings.
func (c *check) consumer(
	ctx context.Context, stream string, wanted jetstream.ConsumerConfig, fit func(jetstream.ConsumerConfig) error,
) (note string, err error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	consumer, err := c.js.Consumer(ctx, stream, wanted.Durable)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		return "absent; the worker creates it", c.absent(err, fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.%s", stream, wanted.Durable))
	case err != nil:
		return "", c.explain(err)
	}
	info := consumer.CachedInfo()
	if err := cmp.Or(fit(info.Config), outlasts(info.Config, c.Longest)); err != nil {
		return "", err
	}
	if err := c.looksAt(ctx, stream); err != nil {
		return "", fmt.Errorf("looking at stored events: %w", c.explain(err))
	}
	if err := remarks(info, wanted); err != nil {
		return "", err
	}
	note = fmt.Sprintf("%d events are waiting", info.NumPending+uint64(info.NumAckPending)) //nolint:gosec // a count is not negative
	if info.NumAckPending > 0 {
		note += fmt.Sprintf(", %d of them delivered to a worker", info.NumAckPending)
	}
	return note, nil
}

// looksAt reads a stored event, as a worker does in its search for undecided events.
func (c *check) looksAt(ctx context.Context, name string) error {
	stream, err := c.js.Stream(ctx, name)
	if err == nil {
		_, err = stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(c.Names.Subject))
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

// stream checks whether a stream can be used, how it is bounded, and how it differs from the settings.
func (c *check) stream(ctx context.Context, wanted jetstream.StreamConfig, fit func(jetstream.StreamConfig) error) (note string, err error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	stream, err := c.js.Stream(ctx, wanted.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		isTaken := func(subject string) bool { return c.try(ctx, strings.Replace(subject, ">", "check", 1)) == nil }
		if c.Provision && slices.ContainsFunc(wanted.Subjects, isTaken) {
			return "", fmt.Errorf("absent, and no worker can create it: another stream has a subject of %s; correct %s, or %s if this is another deployment",
				strings.Join(wanted.Subjects, ", "), c.settingOf(wanted.Name), c.subjectSettingOf(wanted.Name))
		}
		return "absent; the worker creates it: " + bounds(wanted), c.absent(err, "$JS.API.STREAM.CREATE."+wanted.Name)
	case err != nil:
		return "", c.explain(err)
	}
	config := stream.CachedInfo().Config
	if config.Replicas == 1 {
		c.single = append(c.single, config.Name)
	}
	if err := fit(config); err != nil {
		return "", err
	}
	wanted = sized(wanted, c.further.MaxBody)
	differences := differences(wanted, config)
	if used := stream.CachedInfo().State; config.Retention == jetstream.WorkQueuePolicy && isFull(config, used, int64(wanted.MaxMsgSize)) {
		differences = append(differences, fmt.Sprintf("it is full, with %d bytes in %d messages: it refuses events until workers have taken some", used.Bytes, used.Msgs))
	}
	if len(differences) > 0 {
		return "", warn(append([]string{bounds(config)}, differences...))
	}
	return bounds(config), nil
}

// headerBytes is more than the headers of an event usually take.
const headerBytes = 4 << 10

// sized adds the size of the largest event to the configuration of a stream. A body of 0 bytes is not known.
func sized(wanted jetstream.StreamConfig, maxBody int) jetstream.StreamConfig {
	if maxBody > 0 {
		wanted.MaxMsgSize = int32(min(maxBody+headerBytes, math.MaxInt32))
	}
	return wanted
}

func bounds(c jetstream.StreamConfig) string {
	text := "no bound in bytes"
	if c.MaxBytes > 0 {
		text = "at most " + bytesText(c.MaxBytes)
	}
	if c.MaxMsgs > 0 {
		text += fmt.Sprintf(", at most %d messages", c.MaxMsgs)
	}
	if c.MaxMsgsPerSubject > 0 {
		text += fmt.Sprintf(", %d messages on each subject", c.MaxMsgsPerSubject)
	}
	if c.MaxAge > 0 {
		text += ", for " + ageText(c.MaxAge)
	} else {
		text += ", for ever"
	}
	if c.Replicas > 0 {
		text += fmt.Sprintf("; replicas: %d", c.Replicas)
	}
	return text
}

// differences lists what an operator should know about an existing stream.
func differences(wanted, found jetstream.StreamConfig) []string {
	var texts []string
	if found.Storage != wanted.Storage {
		texts = append(texts, fmt.Sprintf("%s storage, which loses all messages when its servers stop; expected %s", found.Storage, wanted.Storage))
	}
	if wanted.MaxBytes > 0 && found.MaxBytes <= 0 {
		texts = append(texts, fmt.Sprintf("one that is created has at most %s", bytesText(wanted.MaxBytes)))
	}
	mayBeFull := found.MaxBytes > 0 || found.MaxMsgs > 0 || found.MaxMsgsPerSubject > 0
	switch {
	case found.Discard != jetstream.DiscardOld || !mayBeFull:
	case wanted.Discard != jetstream.DiscardOld:
		texts = append(texts, "when it is full it loses its oldest messages, whoever they belong to (discard old); expected discard new")
	case wanted.MaxBytes <= 0:
		texts = append(texts, "when it is full it loses its oldest messages; expected no bound in messages or bytes")
	}
	if wanted.MaxMsgsPerSubject > 0 && found.MaxMsgsPerSubject <= 0 {
		texts = append(texts, fmt.Sprintf("no bound for each subject, so one producer takes the room of all; expected %d (max_msgs_per_subject)", wanted.MaxMsgsPerSubject))
	}
	switch losesOldest := found.MaxMsgsPerSubject > 0 && !found.DiscardNewPerSubject; {
	case losesOldest && wanted.DiscardNewPerSubject:
		texts = append(texts, "on a full subject it loses the oldest message, and nobody counts it; expected discard_new_per_subject")
	case losesOldest && wanted.Discard != jetstream.DiscardOld:
		texts = append(texts, "on a full subject it loses the oldest message; expected no bound for each subject (max_msgs_per_subject)")
	}
	if found.MaxMsgSize > 0 && found.MaxMsgSize < wanted.MaxMsgSize {
		texts = append(texts, fmt.Sprintf("it refuses messages of more than %s (max_msg_size); expected at least %s, which is NOTIFIER_EVENT_MAX_BYTES and %s for headers",
			bytesText(int64(found.MaxMsgSize)), bytesText(int64(wanted.MaxMsgSize)), bytesText(headerBytes)))
	}
	if transform := found.SubjectTransform; transform != nil {
		texts = append(texts, fmt.Sprintf("it stores messages under other subjects (subject_transform to %s), so they change their category or reach no worker; "+
			"expected none", transform.Destination))
	}
	if copies := found.RePublish; copies != nil {
		texts = append(texts, fmt.Sprintf("it publishes a copy of each message (republish to %s), which is another event for a stream with that subject; expected none",
			copies.Destination))
	}
	if found.NoAck {
		texts = append(texts, "it does not confirm what it stores (no_ack)")
	}
	if found.Sealed {
		texts = append(texts, "it is sealed, which cannot be undone: it stores nothing more; make the stream anew")
	}
	return texts
}

func bytesText[T int | int32 | int64](n T) string {
	unit := 0
	names := []string{"", "KiB", "MiB", "GiB", "TiB"}
	for n >= 1024 && n%1024 == 0 && unit < len(names)-1 {
		n, unit = n/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d%s", n, names[unit])
}

func ageText(d time.Duration) string {
	const day = 24 * time.Hour
	if d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}

// replicas warns about streams that only one server stores, with the stream of the live limits and mutes. Whether that stream can be used is the
// finding of another check.
func (c *check) replicas(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	if bucket, err := c.js.Stream(ctx, "KV_"+c.further.Bucket); err == nil && bucket.CachedInfo().Config.Replicas == 1 {
		c.single = append(c.single, bucket.CachedInfo().Config.Name)
	}
	if len(c.single) == 0 {
		return nil
	}
	streams := strings.Join(c.single, ", ")
	text := fmt.Sprintf("one server keeps %s: a power failure takes what it has acknowledged since it last wrote to the disk, up to two minutes, "+
		"unless its sync_interval is always (most clients cannot see that; docs/delivery.md has what each setting loses)", streams)
	if cluster := c.Connection.Conn.ConnectedClusterName(); cluster != "" {
		text = fmt.Sprintf("in the cluster %q one server alone keeps %s: when it stops everything does, and its disk is all there is; "+
			"set NOTIFIER_NATS_REPLICAS=3 before they are created, or num_replicas of those that exist", cluster, streams)
	}
	return []Finding{about("nats replicas")("", warn([]string{text}))}
}

// explain adds what the server denied, since the caller sees only a timeout.
func (c *check) explain(err error) error {
	if denied := c.Connection.Denied(); len(denied) > 0 {
		return fmt.Errorf("%w (%s)", err, strings.Join(denied, "; "))
	}
	return withHint(err)
}

// errUnexpected is a stream's answer to a message that expects another stream: a stream has the subject, and the publisher the permission.
const errUnexpected = jetstream.ErrorCode(10060)

const unexpected = "notifier-check-no-such-stream"

// try publishes a message that every stream refuses. It returns nil if a stream has the subject.
func (c *check) try(ctx context.Context, subject string) error {
	_, err := c.js.PublishMsg(ctx, nats.NewMsg(subject), jetstream.WithExpectStream(unexpected), jetstream.WithRetryAttempts(0))
	if refusal, refused := errors.AsType[*jetstream.APIError](err); refused && refusal.ErrorCode == errUnexpected {
		return nil
	}
	return err
}

func (c *check) settingOf(stream string) string {
	switch stream {
	case c.Names.Stream:
		return "NOTIFIER_NATS_STREAM"
	case c.Names.RoomStream:
		return "NOTIFIER_ROOM_STREAM"
	case c.Names.DeadLetterStream:
		return "NOTIFIER_DLQ_STREAM"
	}
	return "NOTIFIER_JOURNAL_STREAM"
}

// subjectSettingOf returns the setting of a stream's subjects.
func (c *check) subjectSettingOf(stream string) string {
	if stream == c.Names.DeadLetterStream {
		return "NOTIFIER_DLQ_SUBJECT"
	}
	return "NOTIFIER_NATS_SUBJECT"
}

func (c *check) stored(ctx context.Context, stream, subject string) (note string, err error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	err = c.try(ctx, subject)
	absent := errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
	if absent { // or JetStream is off, or nobody leads the stream
		if _, reason := c.js.Stream(ctx, stream); reason != nil && !errors.Is(reason, jetstream.ErrStreamNotFound) {
			return "", c.explain(reason)
		}
	}
	switch {
	case err == nil:
		return "would be stored", nil
	case absent && c.Provision:
		return "no stream yet; the worker creates it", nil
	case absent:
		return "", fmt.Errorf("no stream takes them (create %q with notifier provision, or set NOTIFIER_NATS_PROVISION=true)", stream)
	}
	for _, denied := range c.Connection.Denied() { // of another subject too
		if strings.Contains(denied, strconv.Quote(subject)) {
			return "", errors.New(denied)
		}
	}
	return "", withHint(err)
}

// permissions tries the worker's other subjects without effect, and lists the denied subjects.
func (c *check) permissions(ctx context.Context) []Finding {
	const channel = "check"
	const malformed = "check" // nothing is delivered or created
	requests := map[string]string{
		"$SRV.PING.notifier":   malformed,
		"$SRV.STATUS.notifier": malformed,
		fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.%s.%s", c.Names.RoomStream, c.Names.ChannelConsumer(channel), c.Names.Room().ChannelFilter(channel)): malformed,
		// No letter has this subject, so nothing is purged.
		"$JS.API.STREAM.PURGE." + c.Names.DeadLetterStream: fmt.Sprintf(`{"filter":%q}`, c.Names.DeadLetterSubject+".check.check"),
	}
	for stream, consumers := range map[string][]string{
		c.Names.Stream: {c.Names.Consumer}, c.Names.RoomStream: {c.Names.roomConsumer(), c.Names.ChannelConsumer(channel)},
	} {
		requests["$JS.API.STREAM.MSG.DELETE."+stream] = malformed
		for _, consumer := range consumers {
			requests[fmt.Sprintf("$JS.ACK.%s.%s.check", stream, consumer)] = malformed
			requests[fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, consumer)] = malformed
		}
	}
	for stream, subjects := range c.swept() {
		requests[fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.check.%s", stream, subjects)] = malformed
		requests[fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.check", stream)] = malformed
		requests["$JS.API.STREAM.MSG.DELETE."+stream] = malformed
	}
	for _, subject := range c.creates {
		requests[subject] = malformed
	}
	const services = "$SRV.PING.notifier.check"
	uses := map[string]func(*nats.Conn) error{services: func(conn *nats.Conn) error {
		subscription, err := conn.SubscribeSync(services)
		if err != nil {
			return err
		}
		return subscription.Unsubscribe()
	}}
	inbox := c.Connection.Conn.NewInbox()
	uses[inbox] = func(conn *nats.Conn) error { return answer(ctx, conn, inbox) }
	limits := fmt.Sprintf("$KV.%s.check", c.further.Bucket) // a worker ends limits that were set for a time
	uses[limits] = func(conn *nats.Conn) error {
		return conn.PublishMsg(&nats.Msg{Subject: limits, Header: nats.Header{jetstream.ExpectedStreamHeader: {unexpected}}})
	}
	for subject, body := range requests {
		uses[subject] = func(conn *nats.Conn) error { return conn.Publish(subject, []byte(body)) }
	}
	var findings []Finding
	for _, subject := range slices.Sorted(maps.Keys(uses)) {
		denial, err := c.denial(ctx, subject, uses[subject])
		if err != nil {
			return append(findings, about("nats permissions")("", err))
		}
		if denial != "" && subject == inbox {
			denial += " (with allow_responses a worker may answer the requests by which others count it)"
		}
		if denial != "" {
			findings = append(findings, about("nats permissions")("", errors.New(denial)))
		}
	}
	if len(findings) == 0 {
		findings = append(findings, about("nats permissions")("what a worker publishes and subscribes to is allowed", nil))
	}
	return findings
}

// swept returns the subjects of the streams from which a worker removes messages that no worker wrote.
func (c *check) swept() map[string]string {
	swept := map[string]string{c.Names.DeadLetterStream: c.Names.DeadLetterSubject + ".>"}
	if c.Names.Journal.Age > 0 {
		swept[c.Names.Journal.Stream] = c.Names.Journal.All()
	}
	return swept
}

// answer sends a request as a worker that counts workers, with a reply subject, and answers it as another worker.
func answer(ctx context.Context, conn *nats.Conn, reply string) error {
	const ping = "$SRV.PING.notifier"
	subscription, err := conn.SubscribeSync(ping)
	if err != nil {
		return err
	}
	defer func() { _ = subscription.Unsubscribe() }()
	if err := conn.PublishMsg(&nats.Msg{Subject: ping, Reply: reply}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		request, err := subscription.NextMsgWithContext(ctx)
		if err != nil {
			return nil // a denied subscription or request is another finding
		}
		if request.Reply == reply {
			return request.Respond(nil)
		}
	}
}

// denial returns the server's denial of the use of a subject; "": there is none. The denial comes before the answer to the flush.
func (c *check) denial(ctx context.Context, subject string, use func(*nats.Conn) error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	if err := use(c.Connection.Conn); err != nil {
		return "", err
	}
	if err := c.Connection.Conn.FlushWithContext(ctx); err != nil {
		return "", err
	}
	last := c.Connection.Conn.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || !strings.Contains(last.Error(), strconv.Quote(subject)) {
		return "", nil
	}
	return deniedText(last), nil
}
