package main

// ofConsume are the bugs in internal/consume.
var ofConsume = []mutant{
	{
		name: "acknowledged-before-stored",
		bug:  "A message is acknowledged before its event is stored in the room.",
		file: "internal/consume/mover.go",
		old:  `releasing.Wait()`,
		new: `releasing.Wait()
	for _, move := range batch {
		m.worker.settle(settlement{message: move.message, goesOn: true})
	}`,
		test: "./internal/consume -run ^TestRoomCannotBeWritten$",
	},
	{
		name: "acknowledgements-run-out-in-silence",
		bug:  "A worker to which nothing is delivered any more, since too much is unacknowledged, counts as ready.",
		file: "internal/consume/health.go",
		old:  `return errors.Join(h.consumer.now(), h.unsettled.now(), misconfigured)`,
		new:  `return errors.Join(h.consumer.now(), misconfigured)`,
		test: "./internal/consume -run ^TestAcknowledgementsAreBounded$",
	},
	{
		name: "clock-of-the-slowest-answer",
		bug:  "A slow answer moves the server's clock that a quick one told.",
		file: "internal/consume/clock.go",
		old:  `c.known && agrees && c.doubt <= doubt`,
		new:  `c.known && agrees && c.doubt > doubt`,
		test: "./internal/consume -run ^TestServerClock$",
	},
	{
		name: "back-before-the-slot",
		bug:  "An event comes back before its slot opens where the server's clock is not known well.",
		file: "internal/consume/move.go",
		old:  `due = w.clock.latest().Add(to.in)`,
		new:  `due = w.clock.now().Add(to.in)`,
		test: "./internal/consume -run ^TestAgesByTheServersClock$",
	},
	{
		name: "age-by-the-clock-of-the-host",
		bug:  "An event is too old by the clock of the worker's host.",
		file: "internal/consume/decode.go",
		old:  `w.clock.at(now).Sub(m.entry.Since) > w.o.MaxAge`,
		new:  `now.Sub(m.entry.Since) > w.o.MaxAge`,
		test: "./internal/consume -run ^TestAgesByTheServersClock$",
	},
	{
		name: "delivered-before-counted-again",
		bug:  "An event that somebody delivered before is counted once more.",
		file: "internal/consume/settle.go",
		old:  `return settlement{message: c.message}`,
		new:  `return settlement{message: c.message, outcome: Sent}`,
		test: "./internal/consume -run ^TestOutcomes$/^done$",
	},
	{
		name: "doubt-lost-by-a-move",
		bug:  "An event in doubt is in doubt no more once it has waited in the room.",
		file: "internal/consume/mover.go",
		old:  `move.grant.Release(m.ctx, move.inDoubt)`,
		new:  `move.grant.Release(m.ctx, false)`,
		test: "./internal/consume -run ^TestMovedInDoubt$",
	},
	{
		name: "fresh-event-overtakes-the-queue",
		bug:  "A fresh event goes out before those that wait for the same channel in the room.",
		file: "internal/consume/channel.go",
		old:  `if fresh && (q.backlog && c.paced || c.full(q)) {`,
		new:  `if fresh && c.full(q) {`,
		test: "./internal/consume -run ^TestQueueIsBounded$",
	},
	{
		name: "fresh-event-overtakes-the-room",
		bug:  "A fresh event overtakes those that are on their way to the queue of its channel.",
		file: "internal/consume/channel.go",
		old:  `q.backlog = received > 0 || !q.calm`,
		new:  `q.backlog = received > 0`,
		test: "./internal/consume -run ^TestQueueIsBounded$",
	},
	{
		name: "lease-lost-and-posted",
		bug:  "A delivery goes on although its lease is somebody else's.",
		file: "internal/consume/leaserenewer.go",
		old: `if !d.grant.Extend(ctx) {
		d.lost.Store(true)
		return false
	}`,
		new:  `d.grant.Extend(ctx)`,
		test: "./internal/consume -run ^TestGrantLostToSomeoneElse$",
	},
	{
		name: "letter-named-after-its-message",
		bug:  "A dead letter is named after the message, not after the origin of its event.",
		file: "internal/consume/deadletter.go",
		old:  `letterID(entry)`,
		new:  `letterID(room.Entry{Origin: room.Origin{Stream: m.stream, Sequence: m.sequence, Stored: m.stored}, Since: m.stored})`,
		test: "./internal/consume -run ^TestDeadLetterOfAnEventThatMoved$",
	},
	{
		name: "letter-of-an-unknown-category",
		bug:  "A dead letter whose category is not valid counts for nobody, and pushes out those of others.",
		file: "internal/consume/deadletter.go",
		old:  `return w.o.Decoder.FirstLevelOf(m.entry.Subject)`,
		new:  `return event.NoLevel`,
		test: "./internal/consume -run TestDeadLetter$/bad_category_below",
	},
	{
		name: "letters-of-a-neighbour-go",
		bug:  "Where the bytes of dead letters run out, the smallest first level loses its oldest ones.",
		file: "internal/consume/letters.go",
		old:  `n > bytes[most] ||`,
		new:  `n < bytes[most] ||`,
		test: "./internal/consume -run TestOldest",
	},
	{
		name: "moved-under-another-name",
		bug:  "An event that is delivered again after its move is stored in the room once more.",
		file: "internal/consume/move.go",
		old:  `fmt.Sprintf("room-%s-%d-%d", m.stream, m.sequence, m.stored.UnixMilli())`,
		new:  `fmt.Sprintf("room-%s-%d-%d-%d", m.stream, m.sequence, m.stored.UnixMilli(), m.delivered)`,
		test: "./internal/consume -run ^TestMovedOnceAfterACrash$",
	},
	{
		name: "moved-without-release",
		bug:  "An event that goes to the room keeps its lease, so whoever takes it from there has to wait.",
		file: "internal/consume/mover.go",
		old: `var releasing sync.WaitGroup
	for _, move := range batch {
		if move.grant != nil {
			releasing.Go(func() { move.grant.Release(m.ctx, move.inDoubt) })
		}
	}
	releasing.Wait()`,
		new:  "",
		test: "./internal/consume -run ^TestMovedInDoubt$",
	},
	{
		name: "parts-without-bound",
		bug:  "The alerts of a split body go to the room however many wait there.",
		file: "internal/consume/mover.go",
		old:  `slices.Contains(mayStay[:len(move.stays)], false)`,
		new:  `move.reason != room.Part && !mayStay[0]`,
		test: "./internal/consume -run ^TestRoomIsFull$",
	},
	{
		name: "post-before-a-late-one",
		bug:  "A post goes out in front of one whose moment is late.",
		file: "internal/consume/channel.go",
		old:  `q.lanes, q.reserving.join(), q.posting.join()`,
		new:  `q.lanes, q.reserving.join(), new(line).join()`,
		test: "./internal/consume -run ^TestOrderBehindALateMoment$",
	},
	{
		name: "prober-gives-up-its-turn",
		bug:  "A delivery that finds the setup at fault gives up its turn to those that wait for its next attempt.",
		file: "internal/consume/deliver.go",
		old:  `return failure != nil && (failure.Class == sink.RateLimited || failure.Class == sink.Misconfigured)`,
		new:  `return failure != nil && failure.Class == sink.RateLimited`,
		test: "./internal/consume -run ^TestOneDeliveryProbes$",
	},
	{
		name: "producers-may-command-the-server",
		bug:  "A stream in which each publisher can forge the events of others is worked on.",
		file: "internal/consume/provision.go",
		old: `if err := n.trusted(stream.CachedInfo().Config); err != nil {
		return topology{}, err
	}`,
		new:  "",
		test: "./internal/consume -run ^TestUnfit$",
	},
	{
		name: "refunded-in-doubt",
		bug:  "An event that was perhaps delivered gets its slot back, and a replay posts it again.",
		file: "internal/consume/deliver.go",
		old: `if d.uncertain {
		d.grant.Finish(work, "")
		return
	}`,
		new:  "",
		test: "./internal/consume -run ^TestRejectedInDoubt$",
	},
	{
		name: "refused-by-the-room-keeps-its-slot",
		bug:  "An event that the room refuses keeps its slot.",
		file: "internal/consume/move.go",
		old:  `w.endUndelivered(work, d)`,
		new:  "",
		test: "./internal/consume -run ^TestRoomIsFull$",
	},
	{
		name: "replay-of-a-delivered-event-uncounted",
		bug:  "A replayed dead letter that was delivered ends in no outcome.",
		file: "internal/consume/settle.go",
		old:  `if c.entry.Replayed() {`,
		new:  `if c.waited() {`,
		test: "./internal/consume -run ^TestReplayed$",
	},
	{
		name: "room-headers-of-producers-believed",
		bug:  "Headers that only workers write are believed from a producer.",
		file: "internal/consume/message.go",
		old:  `if inRoom {`,
		new:  `if inRoom || header.Get(room.HeaderOrigin) != "" {`,
		test: "./internal/consume -run ^TestHostileHeaders$",
	},
	{
		name: "room-without-bound",
		bug:  "Events go to the room however many of their first-level category wait there.",
		file: "internal/consume/mover.go",
		old:  `if mayStay, err := w.throttle.EnterRoom(m.ctx, stays); err == nil {`,
		new:  `if mayStay, err := w.throttle.EnterRoom(m.ctx, stays); err != nil {`,
		test: "./internal/consume -run ^TestRoomIsFull$",
	},
	{
		name: "schedules-of-producers-are-fine",
		bug:  "A worker works on a producers' stream that allows message schedules.",
		file: "internal/consume/provision.go",
		old:  `case c.AllowMsgSchedules:`,
		new:  `case c.AllowMsgSchedules && c.Sealed:`,
		test: "./internal/consume -run TestUnfit",
	},
	{
		name: "sent-counted-though-not-new",
		bug:  "An event counts as sent by a delivery that was recorded before.",
		file: "internal/consume/way.go",
		old:  `if newly {`,
		new:  `if newly || d.left() > 0 {`,
		test: "./internal/consume -run ^TestOutcomes$",
	},
	{
		name: "stay-ends-with-a-move",
		bug:  "An event that moves from one place of the room to another counts there no longer.",
		file: "internal/consume/settle.go",
		old: `if !settled.goesOn {
			ended = append(ended, settled.message)
		}`,
		new:  `ended = append(ended, settled.message)`,
		test: "./internal/consume -run ^TestStayGoesOn$",
	},
	{
		name: "stay-entered-after-its-end",
		bug:  "A redelivery of an event that has ended in the room enters its stay anew.",
		file: "internal/consume/mover.go",
		old:  `if known[i] && !m.counted {`,
		new:  `if false && known[i] {`,
		test: "./internal/consume -run ^TestSplitAgain$",
	},
	{
		name: "stay-not-ended",
		bug:  "An event that has ended goes on counting as one that waits in the room.",
		file: "internal/consume/watch.go",
		old:  `w.leave(stays...)`,
		new:  "",
		test: "./internal/consume -run ^TestStaysEnd$",
	},
	{
		name: "unpaired-before-the-room",
		bug:  "A resolved event is dropped as unpaired though the room holds what may open its pair.",
		file: "internal/consume/paired.go",
		old:  `behind == 0 || !w.openings.room.noneBefore(ctx, behind+1, w.topology.Load(), w.firstOfRoom)`,
		new:  `behind == 0`,
		test: "./internal/consume -run ^TestUnpaired$",
	},
	{
		name: "unpaired-before-what-is-not-settled",
		bug:  "A resolved event is dropped while the producers' stream holds an unsettled one before it that may open its pair.",
		file: "internal/consume/paired.go",
		old:  `behind == 0 && w.openings.producers.noneBefore(ctx, c.entry.Origin.Sequence, w.topology.Load(), w.firstOfProducers)`,
		new:  `behind == 0`,
		test: "./internal/consume -run ^TestUnpaired$",
	},
	{
		name: "vanished-for-nobody",
		bug:  "Messages that vanished from the stream are not counted.",
		file: "internal/consume/watch.go",
		old:  `w.metrics.Vanished(int(vanished))`,
		new:  "",
		test: "./internal/consume -run ^TestVanishedMessages$",
	},
	{
		name: "wait-is-dropped",
		bug:  "An event that somebody else is delivering is acknowledged, and lost if they fail.",
		file: "internal/consume/paired.go",
		old:  `w.nak(c.message, wait+jitter(50*time.Millisecond))`,
		new:  `w.settle(settlement{message: c.message, outcome: Duplicate})`,
		test: "./internal/consume -run ^TestUndecided$",
	},
	{
		name: "stop-reads-as-a-recovery",
		bug:  "A worker that stops while Slack refuses the setup says that the fault is over.",
		file: "internal/consume/health.go",
		old: `	case <-h.stopping:
		return true`,
		new: `	case <-h.stopping:
		return false`,
		test: "./internal/consume -run ^TestStopReadsAsNoRecovery$",
	},
}
