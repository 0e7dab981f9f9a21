package main

// ofDelayed are the bugs about orders for waiting events and about new plans.
var ofDelayed = []mutant{
	{
		name: "plans-of-older-limits",
		bug:  "Waiting events keep their plans after their limit was raised.",
		file: "internal/consume/replan.go",
		old:  `e.Entry.Limits != rules.Plan(e.Category)`,
		new:  `false`,
		test: "./tests -run ^TestPlannedAnew$",
	},
	{
		name: "lost-events-keep-their-places",
		bug:  "The room refuses events in place of events that it has lost.",
		file: "internal/consume/recount.go",
		old:  `			r.refused(first)`,
		new:  `			_ = first`,
		test: "./internal/consume -run ^TestRecount$",
	},
	{
		name: "events-on-their-way-lose-their-places",
		bug:  "A recount ends the stay of an event that is on its way to the room.",
		file: "internal/consume/recount.go",
		old:  `if missing[stay].Equal(end) {`,
		new:  `if !missing[stay].IsZero() && !end.IsZero() {`,
		test: "./internal/consume -run ^TestRecount$",
	},
	{
		name: "refused-after-a-lost-answer",
		bug:  "An event that Redis admitted, but whose answer was lost, is dropped because the room is full.",
		file: "internal/consume/mover.go",
		old:  `if moving.goal.isUndecided() && moving.message.redelivered(m.reader.forgottenUntil()) {`,
		new:  `if false {`,
		test: "./internal/consume -run ^TestRefusedAfterALostAnswer$",
	},
	{
		name: "forgotten-schedules-stay",
		bug:  "A message schedule that a killed server brought back stays in the room.",
		file: "internal/delayed/delayed.go",
		old:  `isSchedule && due.Before(before)`,
		new:  `isSchedule && due.After(before)`,
		test: "./internal/consume -run ^TestForgottenSchedules$",
	},
	{
		name: "dropped-by-an-operator-keeps-its-place",
		bug:  "An event that an operator drops stays in the queue of its limit.",
		file: "internal/consume/way.go",
		old:  `if d.planner.forget(c) {`,
		new:  `if false {`,
		test: "./tests -run ^TestDelayedOrders$",
	},
	{
		name: "released-keeps-its-place",
		bug:  "A released event stays in the queue of its limit.",
		file: "internal/throttle/asker.go",
		old:  `return r.StandsInQueue() || r.HasWaited`,
		new:  `return r.StandsInQueue()`,
		test: "./tests -run ^TestDelayedOrders$",
	},
	{
		name: "released-by-the-limits",
		bug:  "A released event needs slots.",
		file: "internal/throttle/store/encoding.go",
		old:  `if request.Slotless && set == inForce {`,
		new:  `if false {`,
		test: "./tests -run ^TestDelayedOrders$",
	},
}
