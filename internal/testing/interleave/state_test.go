package interleave

// The machine has at most so many workers, events, and messages of an event: the producer's message and its copies in the room.
const (
	mostWorkers  = 3
	mostEvents   = 3
	mostMessages = 3
)

// status is where a message is.
type status uint8

const (
	absent  status = iota // it was never stored
	ready                 // JetStream may deliver it
	held                  // a worker has it
	settled               // it was acknowledged or terminated
)

// reason is why a message is in the room.
type reason uint8

const (
	byProducer reason = iota // it is not in the room
	forChannel
	forSlot
	asPart
	asReplay
)

// message is a message in JetStream.
type message struct {
	status    status
	holder    uint8 // if it is held: the worker
	again     bool  // it was delivered before
	attempted bool  // its header in the room has the time of an attempt
	reason    reason
}

// lease is what Redis records of an event.
type lease uint8

const (
	unknown  lease = iota
	leased         // by a worker
	lapsed         // the lease has ended, and its holder may have posted
	released       // its holder has certainly not posted
	waiting        // by a worker that does not post before it has recorded that it begins
	done           // delivered
)

// slots are the slots of an event.
type slots uint8

const (
	none  slots = iota
	taken       // they count
	left        // their window is over
)

// opening is the pair that a firing event opens.
type opening uint8

const (
	closed opening = iota
	open
	given // to the resolved event
)

// nobody holds a lease.
const nobody = mostWorkers

// record is what Redis knows of an event.
type record struct {
	lease     lease
	holder    uint8 // who knows the present end of the lease; nobody: no process
	mark      bool  // somebody reclaimed the event in doubt
	slots     slots
	pair      opening
	announced bool // as being delivered
	awaited   bool // its pair waits for it, since it waits for a slot
	planned   bool // Redis remembers that it was to come back
	folded    bool // counted in the message of its key
}

// redis is the content of Redis.
type redis struct {
	records  [mostEvents]record
	revision uint8 // of the limits in force
	counted  uint8 // how many events the message of their key counts
	showing  uint8 // how many of them an update has begun to show
	updated  uint8 // order of the newest update that is recorded
}

// phase is where the work of a worker on an event is.
type phase uint8

const (
	idle     phase = iota
	received       // not decided
	admitted
	posting   // a request to Slack is under way
	posted    // Slack has answered, nothing is recorded
	recorded  // the message is not acknowledged
	ending    // the outcome is certain, the message is not acknowledged
	planned   // Redis has planned the return, nothing is stored in the room
	moving    // the lease is not released
	unleased  // it is, nothing is stored in the room
	stored    // in the room, the message is not acknowledged
	rejected  // by Slack
	lettered  // the dead letter is stored, the slots are not returned
	expired   // too old, the slots are not returned
	unslotted // the slots are returned, the message is not acknowledged
	counted   // in the message of its key, nothing shows that
)

// outcome is how an event ends.
type outcome uint8

const (
	undecided outcome = iota
	sent
	dropped
	dead
	folded
	tooOld
)

// work is the work of a worker on an event.
type work struct {
	phase   phase
	message uint8   // that the worker has
	valid   bool    // it holds the lease of the message
	doubt   bool    // an attempt may have made the post, and nobody has looked
	inDoubt bool    // an attempt may have made the post
	certain bool    // all earlier events that could open the pair are decided
	updated bool    // the room has the update of the event that it resolves
	local   bool    // admitted by the failure policy
	waits   bool    // it has recorded that it waits before it posts
	again   bool    // admitted although the message was delivered before
	anew    bool    // so, and Redis knew of no earlier admission
	goal    reason  // of a move
	ends    outcome // with which the event ends
}

// owed is what a worker has to send to Redis.
type owed struct {
	finish, refund bool
	admission      bool // which the failure policy made
	release        lease
	reply          bool  // the reply to a decision was lost
	doubt          bool  // the event of that decision may have been posted before
	lost           uint8 // 1 and the number of a message that the worker has lost: it returns the slots if another worker has ended the event; 0: none
}

// ghost is what really happened to an event, which no process knows.
type ghost struct {
	posts     uint8
	outcomes  [tooOld + 1]bool
	rejects   bool // Slack has rejected it once
	fine      bool // Slack has accepted it once
	letter    letter
	old       bool
	forgotten bool // Redis does not know its holder: a failover lost the lease, or an outage outlasted it
	returned  bool // its slots were returned; a worker that was late may have taken others
	missed    bool // its last message went when no worker was to ask for the message any more: its slots leave with their window
	recounted bool // docs/metrics.md lets its outcome be counted twice, for instance after a late acknowledgement
	exempt    bool // the failure policy decided about it
	open      bool // between a post and its record a worker was killed, the answer was lost or Redis was unavailable
}

// letter is the state of a dead letter.
type letter uint8

const (
	noLetter letter = iota
	stands
	replayed // its event is in the room again
	removed
)

// event is everything about one event outside of Redis.
type event struct {
	messages [mostMessages]message
	works    [mostWorkers]work
	owed     [mostWorkers]owed
	ghost
}

// state is a state of the machine.
type state struct {
	events    [mostEvents]event
	redis     redis
	replica   redis // what a failover brings back, if the replica lags
	lags      bool
	down      bool // no worker reaches Redis
	revisions [mostWorkers]uint8
	alone     [mostWorkers]uint8 // a bit for each event that the worker has admitted without Redis
	operator  uint8              // revision that the operator has set
	digest    digest
	update    update // of the message that counts events, or of the message of an event that is resolved
	faults    uint8  // that may still happen
}

// key is a state in few bits.
type key [8]uint64

// packer writes numbers of few bits into a key.
type packer struct {
	key key
	at  uint
}

func (p *packer) put(value uint8, width uint) {
	word, shift := p.at/64, p.at%64
	p.key[word] |= uint64(value) << shift
	if shift+width > 64 {
		p.key[word+1] |= uint64(value) >> (64 - shift)
	}
	p.at += width
}

func (p *packer) flags(values ...bool) {
	for _, value := range values {
		if value {
			p.put(1, 1)
		} else {
			p.put(0, 1)
		}
	}
}

func (p *packer) record(r *record, workers *order) {
	p.put(uint8(r.lease), 3)
	p.put(workers.to(r.holder), 2)
	p.put(uint8(r.slots), 2)
	p.put(uint8(r.pair), 2)
	p.flags(r.mark, r.announced, r.awaited, r.planned, r.folded)
}

func (p *packer) event(e *event, c *config, workers *order) {
	for i := range c.messages {
		m := &e.messages[i]
		p.put(uint8(m.status), 2)
		if m.status == held {
			p.put(workers.to(m.holder), 2)
		}
		p.flags(m.again, m.attempted)
		p.put(uint8(m.reason), 3)
	}
	for i := range c.workers {
		w, o := &e.works[workers.at[i]], &e.owed[workers.at[i]]
		p.put(uint8(w.phase), 4)
		if w.phase != idle {
			p.put(w.message, 2)
			p.flags(w.valid, w.doubt, w.inDoubt, w.certain, w.updated, w.local, w.waits, w.again, w.anew)
			p.put(uint8(w.goal), 3)
			p.put(uint8(w.ends), 3)
		}
		p.flags(o.finish, o.refund, o.admission, o.reply, o.doubt)
		p.put(uint8(o.release), 3)
		p.put(o.lost, 2)
	}
	p.put(e.posts, 2)
	p.flags(e.outcomes[:]...)
	p.flags(e.rejects, e.fine, e.old, e.forgotten, e.returned, e.missed, e.recounted, e.exempt)
	p.put(uint8(e.letter), 2)
	if !c.lookUp {
		p.flags(e.open)
	}
}

// order renames the workers: the state with the workers in another order is the same state.
type order struct{ at, place [mostWorkers + 1]uint8 }

func (o *order) to(worker uint8) uint8 { return o.place[worker] }

// pack returns the key of a state with its workers in an order. It omits what the configuration does not use.
func (s *state) pack(c *config, workers *order) key {
	var p packer
	for i := range c.events {
		p.event(&s.events[i], c, workers)
		p.record(&s.redis.records[i], workers)
		if s.lags {
			p.record(&s.replica.records[i], workers)
		}
	}
	p.flags(s.lags, s.down)
	for i := range c.workers {
		p.put(s.revisions[workers.at[i]], 1)
		p.put(s.alone[workers.at[i]], mostEvents)
	}
	p.put(s.redis.revision, 1)
	p.put(s.replica.revision, 1)
	p.put(s.operator, 1)
	p.put(s.redis.counted, 2)
	p.put(s.replica.counted, 2)
	switch {
	case c.updates:
		p.update(s, workers)
	case c.resolves > 0:
		p.put(s.update.shown, 1)
	}
	p.put(uint8(s.digest.progress), 3)
	p.put(workers.to(s.digest.holder), 2)
	p.put(s.digest.posts, 2)
	p.put(s.faults, 4)
	return p.key
}

// orders returns the orders of so many workers.
func orders(workers int) (all []order) {
	lists := map[int][][]uint8{
		1: {{0}}, 2: {{0, 1}, {1, 0}}, 3: {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}},
	}
	for _, list := range lists[workers] {
		var o order
		o.at[nobody], o.place[nobody] = nobody, nobody
		for place, worker := range list {
			o.at[place], o.place[worker] = worker, uint8(place)
		}
		all = append(all, o)
	}
	return all
}

// canonical returns the least key of a state, over all orders of its workers.
func (c *config) canonical(s *state) key {
	var least key
	for i := range c.orders {
		packed := s.pack(c, &c.orders[i])
		if i == 0 || less(&packed, &least) {
			least = packed
		}
	}
	return least
}

func less(a, b *key) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
